// All that the runtime's mutex guards besides its driver: the engine, the membership, and the survey of links.
// Runtime::locked() and Runtime::wait() lend it to their callers' functions; there is no other way to it, so none without the
// mutex.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "group/lifecycle/membership.h"
#include "group/lifecycle/survey.h"
#include "rendezvous/environment.h"

namespace unisono {

struct GuardedState {
  GuardedState(const ResolvedOptions& given, PeerId self, std::vector<Link> links);

  const ResolvedOptions options;
  InlineCompute compute{monotonic_now};
  Membership members;  // before the engine, which uses its transports to the end
  Engine engine;
  Survey survey;
  bool yields = false;  // processes share cores: a thread that polls yields to the others

  // Divides cores and caches among the processes of this host.
  void set_local_world(uint32_t processes);
  // The group has agreed on its topology.
  void know_topology(const Topology& topology);
};

}  // namespace unisono

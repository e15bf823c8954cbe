// The state that the runtime's mutex guards: the engine, the membership, and the survey of the links. (The mutex also guards
// some members of the runtime itself.) The state can be reached only through Runtime::locked() and Runtime::wait(). Both call a
// function of the caller under the mutex and pass it a reference to the state.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "engine/inline_compute.h"
#include "events/event_queue.h"
#include "group/lifecycle/membership.h"
#include "group/lifecycle/survey.h"
#include "rendezvous/environment.h"

namespace unisono {

struct GuardedState {
  GuardedState(const ResolvedOptions& given, PeerId self, std::vector<Link> links, EventQueue& event_queue);

  const ResolvedOptions options;
  InlineCompute compute{monotonic_now};
  // It is declared before the engine, because the engine uses the members' transports until it is destroyed.
  Membership members;
  Engine engine;
  Survey survey;
  EventQueue& events;   // it has a lock of its own
  bool yields = false;  // true: several processes share a core, so a thread that polls calls sched_yield()

  // Divides the cores and the caches of this host among its `processes` processes.
  void set_local_world(uint32_t processes);
  // Stores the topology on which the group has agreed.
  void apply_topology(const Topology& topology);
};

}  // namespace unisono

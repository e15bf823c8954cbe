// How an examination proceeds: rank 0 orders one rank after another to probe, and collects the results.
#pragma once

#include "base/clock.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_probe.h"
#include "rendezvous/environment.h"

namespace unisono::cli {

struct Examination {
  const ResolvedOptions& options;
  Nanos timeout = 0;  // how long to wait for all ranks to come
};

// For rank 0. Examines the cluster. This always returns, with whatever facts are known by then.
ClusterFacts lead(const Examination& examination, Prober& prober);

// For the other ranks. Follows the orders of rank 0. Returns nullopt when rank 0 has ended the examination. Otherwise returns
// why this rank could not take part; the caller must report this, because rank 0 may not know it.
std::optional<RendezvousFailure> follow(const Examination& examination, Prober& prober);

}  // namespace unisono::cli

// The course of an examination: rank 0 tells the others what to probe, one thing after the other, and gathers what they find.
#pragma once

#include "base/clock.h"
#include "cli/doctor/doctor_facts.h"
#include "cli/doctor/doctor_probe.h"
#include "rendezvous/environment.h"

namespace unisono::cli {

struct Examination {
  const ResolvedOptions& options;
  Nanos patience = 0;  // for all ranks to come
};

// Rank 0. Always comes to an end, with what is known by then.
ClusterFacts lead(const Examination& examination, Prober& prober);

// The others: does as rank 0 says until it says that all is done. Nothing if all went well; else why this rank could not
// take part; then perhaps only this rank knows.
std::optional<RendezvousTrouble> follow(const Examination& examination, Prober& prober);

}  // namespace unisono::cli

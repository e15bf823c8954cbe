// Implements Averager over an elastic run, with a real clock. The run must outlive the averager.
#pragma once

#include <memory>

#include "training/moshpit_sgd/averager.h"

namespace unisono::internal {

std::unique_ptr<Averager> make_elastic_averager(Elastic& run);
// Returns what this process knew about the run when it joined.
MoshpitStart start_state_of(const Elastic& run);

}  // namespace unisono::internal

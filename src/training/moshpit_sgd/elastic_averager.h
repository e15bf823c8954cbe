// The averager over an elastic run, with a real clock. The run is borrowed.
#pragma once

#include <memory>

#include "training/moshpit_sgd/averager.h"

namespace unisono::internal {

std::unique_ptr<Averager> make_elastic_averager(Elastic& run);
// The state of the run when this process joined.
MoshpitStart start_in(const Elastic& run);

}  // namespace unisono::internal

// Compares the measurements of `unisono-lab simulate loss --network` with the expected values, and gives a verdict on each.
// Performs no I/O.
#pragma once

#include <vector>

#include "lab/loss/loss_checks.h"
#include "lab/loss/udp_run.h"

namespace unisono::lab {

// The results of all seeds together.
struct NetworkResult {
  LossPlan plan;  // its member `network` is set
  sim::UdpOutcome outcome;
};

std::vector<LossCheck> checks_of(const NetworkResult& result);

}  // namespace unisono::lab

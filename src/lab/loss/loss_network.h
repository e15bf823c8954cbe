// Compares the measurements of `unisono-lab simulate loss --network` with the values that must hold, line by line, with a
// verdict on each. Pure.
#pragma once

#include <vector>

#include "lab/loss/loss_checks.h"
#include "lab/loss/udp_run.h"

namespace unisono::cli {

// All seeds put together.
struct NetworkResult {
  LossPlan plan;  // with its network
  sim::UdpOutcome outcome;
};

std::vector<LossCheck> checks_of(const NetworkResult& result);

}  // namespace unisono::cli

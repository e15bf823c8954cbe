// The loops of Q80, compiled once per instruction set from q80_kernels.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensor_parallel {

struct Q80Kernels {
  void (*encode)(const float* values, size_t count, uint8_t* out);
  void (*add)(const uint8_t* encoded, size_t count, float* sums);
};

// Every build that this machine can run, the plainest first.
std::vector<const Q80Kernels*> supported_q80_kernels();

}  // namespace tensor_parallel

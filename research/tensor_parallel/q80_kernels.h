// The loops of Q80. q80_kernels.cc is compiled once for each instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tensor_parallel {

struct Q80Kernels {
  void (*encode)(const float* values, size_t count, uint8_t* out);
  void (*add)(const uint8_t* encoded, size_t count, float* sums);
};

// Returns all builds that this machine can run. The baseline is the first.
std::vector<const Q80Kernels*> supported_q80_kernels();

}  // namespace tensor_parallel

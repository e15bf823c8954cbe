#include "research/tensor_parallel/q80.h"

#include "research/tensor_parallel/q80_kernels.h"

namespace tensor_parallel {

extern const Q80Kernels q80_kernels_baseline;
#ifdef TENSOR_PARALLEL_X86
extern const Q80Kernels q80_kernels_x86_64_v3;
#endif

std::vector<const Q80Kernels*> supported_q80_kernels() {
  std::vector<const Q80Kernels*> supported{&q80_kernels_baseline};
#ifdef TENSOR_PARALLEL_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
    supported.push_back(&q80_kernels_x86_64_v3);
#endif
  return supported;
}

namespace {

const Q80Kernels& kernels() {
  static const Q80Kernels& best = *supported_q80_kernels().back();
  return best;
}

}  // namespace

void q80_encode(std::span<const float> values, std::span<uint8_t> out) {
  kernels().encode(values.data(), values.size(), out.data());
}

void q80_add(std::span<const uint8_t> encoded, std::span<float> sums) {
  kernels().add(encoded.data(), sums.size(), sums.data());
}

}  // namespace tensor_parallel

// Chooses the build of the kernels for this machine. This is a separate file, because it must be compiled for the oldest
// instruction set.
#include "research/model/kernels.h"

namespace language_model {

extern const Kernels<float> kernels_float_baseline;
extern const Kernels<double> kernels_double_baseline;
#ifdef LANGUAGE_MODEL_X86
extern const Kernels<float> kernels_float_x86_64_v3;
extern const Kernels<float> kernels_float_x86_64_v4;

namespace {
bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
}
bool has_v4() {
  return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
}  // namespace
#endif

std::vector<const Kernels<float>*> supported_kernels() {
  std::vector<const Kernels<float>*> supported{&kernels_float_baseline};
#ifdef LANGUAGE_MODEL_X86
  if (has_v3()) supported.push_back(&kernels_float_x86_64_v3);
  if (has_v4()) supported.push_back(&kernels_float_x86_64_v4);
#endif
  return supported;
}

template <>
const Kernels<float>& kernels<float>() {
  return *supported_kernels().back();
}

template <>
const Kernels<double>& kernels<double>() {
  return kernels_double_baseline;
}

}  // namespace language_model

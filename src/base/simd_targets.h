// Which instruction sets SIMD code is not compiled for. To be included before hwy/foreach_target.h.
#pragma once

// SSSE3 without SSE4 is on no machine that is left. Sizeless vectors (the SVEs, RVV) cannot be kept in structs and arrays, as
// this code does.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

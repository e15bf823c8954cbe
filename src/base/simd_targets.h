// Instruction sets for which SIMD code is not compiled. Include this before hwy/foreach_target.h.
#pragma once

// Every machine with SSSE3 that matters has SSE4, too. Sizeless vectors (the SVEs, RVV) cannot be members of structs and
// arrays, and this code needs them there.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

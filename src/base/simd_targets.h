// Lists the instruction sets for which no SIMD code is compiled. Include this header before hwy/foreach_target.h.
#pragma once

// SSSE3 is left out because every relevant machine with SSSE3 also has SSE4. SVE and RVV are left out because our code puts
// vectors into structs and arrays, and this works only with vectors of a fixed size.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)

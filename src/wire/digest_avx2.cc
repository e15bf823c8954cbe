// This file is compiled for AVX2, so it must include no C++ header. Otherwise it would contain AVX2 versions of inline
// functions, and the linker could use these versions in code for other processors.
#include "wire/digest_avx2.h"

#ifdef UNISONO_DIGEST_AVX2
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace unisono {

uint64_t digest64_avx2(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

}  // namespace unisono

#endif

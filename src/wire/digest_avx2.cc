// Compiled for AVX2. This file includes no C++ header: an inline function compiled here could otherwise be linked into code for
// other processors.
#include "wire/digest_avx2.h"

#ifdef UNISONO_DIGEST_AVX2
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace unisono {

uint64_t digest64_avx2(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

}  // namespace unisono

#endif

// Compiled for AVX2, so no function of this file may be one that other files share: no header of C++ here.
#include "wire/digest_avx2.h"

#ifdef UNISONO_DIGEST_AVX2
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace unisono {

uint64_t digest64_avx2(const void* bytes, size_t size) { return XXH3_64bits(bytes, size); }

}  // namespace unisono

#endif

#include "wire/digest.h"

#define XXH_INLINE_ALL  // the header holds the whole implementation, so programs need not link libxxhash
#include <xxhash.h>

#include "wire/digest_avx2.h"

namespace unisono {

uint64_t digest64(ByteView bytes) {
#ifdef UNISONO_DIGEST_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return digest64_avx2(bytes.data(), bytes.size());
#endif
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace unisono

#include "wire/digest.h"

#define XXH_INLINE_ALL  // the header holds all of it: programs that link us need not link libxxhash
#include <xxhash.h>

namespace unisono {

uint64_t digest64(ByteView bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace unisono

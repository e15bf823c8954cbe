// The 64-bit digest of encoded chunks in elastic runs: XXH3 (64 bits, seed 0), fixed in the wire format.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace unisono {

uint64_t digest64(ByteView bytes);

}  // namespace unisono

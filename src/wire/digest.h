// The digest (a 64-bit hash) of encoded chunks in elastic runs. It is XXH3 with 64 bits and seed 0, as the wire format says.
#pragma once

#include <cstdint>

#include "base/bytes.h"

namespace unisono {

uint64_t digest64(ByteView bytes);

}  // namespace unisono

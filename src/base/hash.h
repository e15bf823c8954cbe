// Computes a 64-bit hash of bytes. The hash is the same on every host. It is not cryptographic: it detects accidental
// differences and damaged files, but not forgeries.
#pragma once

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono {

inline uint64_t hash_of(ByteView bytes) {
  uint64_t hash = mix64(bytes.size());
  for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = mix64(hash ^ word);
  }
  return hash;
}

}  // namespace unisono

// Prefetches memory: the caller announces which memory it needs soon, and the processor loads it in the background.
#pragma once

#include <cstddef>
#include <span>

namespace unisono {

inline constexpr size_t cache_line_bytes = 64;

inline void prefetch_to_read(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at);
}

// Prefetches memory that will be overwritten. A cache line must be in the cache even before a store to it, because the store
// may change only a part of the line.
inline void prefetch_to_write(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at, 1);
}

}  // namespace unisono

// Prefetch: the caller announces memory that it needs soon, and the processor loads it while other work goes on.
#pragma once

#include <cstddef>
#include <span>

namespace unisono {

inline constexpr size_t cache_line_bytes = 64;

inline void prefetch_to_read(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at);
}

// For memory that is to be overwritten whole. Stores need the line in the cache, too, because the first bytes of each line are
// written alone.
inline void prefetch_to_write(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at, 1);
}

}  // namespace unisono

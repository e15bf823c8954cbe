// Memory that is needed soon is fetched into the cache while something else is done.
#pragma once

#include <cstddef>
#include <span>

namespace unisono {

inline constexpr size_t cache_line_bytes = 64;

inline void prefetch_to_read(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at);
}

// To be written whole: lines are waited for all the same, because the first bytes of each are written alone.
inline void prefetch_to_write(std::span<std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += cache_line_bytes) __builtin_prefetch(bytes.data() + at, 1);
}

}  // namespace unisono

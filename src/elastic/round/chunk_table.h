// How a vector is cut into chunks. It is cut in the same way in every group of a run. A chunk has 65536 elements. If this would
// give fewer than 4·max_group chunks, the chunks are made smaller. Only the last chunk may be shorter than the others. A value.
//
// The owner of a chunk (the member that adds it up) must not hold too many contributions. Therefore a member that has sent
// window() contributions to an owner must wait for their results before it sends more. The window is part of the protocol: all
// members use the same one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono {

inline constexpr uint32_t inflight_chunks = 4;
// The window has at least this many bytes. If chunks are small, a smaller window would cost many round trips.
inline constexpr size_t inflight_bytes_min = 64 * 1024;

class ChunkTable {
 public:
  ChunkTable() = default;
  // Requires max_group >= 1. The vector must have fewer than 2^32 chunks.
  ChunkTable(size_t elements, uint32_t max_group);

  size_t elements() const { return elements_; }
  size_t chunk_elements() const { return chunk_elements_; }  // the design documents call it E_c
  uint32_t chunks() const { return chunks_; }                // 0 if there are no elements
  // first() and count() require chunk < chunks().
  size_t first(uint32_t chunk) const { return chunk * chunk_elements_; }
  size_t count(uint32_t chunk) const { return chunk + 1 < chunks_ ? chunk_elements_ : elements_ - first(chunk); }
  uint32_t window() const { return window_; }
  friend bool operator==(const ChunkTable&, const ChunkTable&) = default;

 private:
  size_t elements_ = 0;
  size_t chunk_elements_ = 65536;
  uint32_t chunks_ = 0;
  uint32_t window_ = inflight_chunks;
};

}  // namespace unisono

// How a vector is cut into chunks, the same in every group of a run: chunks of 65536 elements, or smaller ones if there would
// be fewer than 4·max_group. Only the last chunk may be shorter. A value.
//
// It also sets how many of a member's contributions to one owner may be unanswered. That bounds what an owner must hold, so it
// is part of the protocol, and equal at all members.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono {

inline constexpr uint32_t inflight_chunks = 4;
// At least this many bytes may be in flight; otherwise small chunks would need many round trips.
inline constexpr size_t inflight_bytes_min = 64 * 1024;

class ChunkTable {
 public:
  ChunkTable() = default;
  // Requires max_group >= 1, and elements that give fewer than 2^32 chunks.
  ChunkTable(size_t elements, uint32_t max_group);

  size_t elements() const { return elements_; }
  size_t chunk_elements() const { return chunk_elements_; }  // E_c of the design documents
  uint32_t chunks() const { return chunks_; }                // 0 without elements
  // These two require chunk < chunks().
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

// A vector of fp32, held in chunks. The memory of a chunk is shared and never written. replace() gives a chunk new memory,
// while copies of this object keep the old memory, which does not change. In this way, values get from a received result to the
// next round, to joiners and to the user without being copied.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/shared_buffer.h"
#include "elastic/round/chunk_table.h"

namespace unisono {

class ChunkValues {
 public:
  ChunkValues() = default;  // has no elements
  // `whole` must hold table.elements() fp32. Its memory is shared, and not copied.
  ChunkValues(const ChunkTable& table, const SharedBuffer& whole);

  size_t elements() const { return table_.elements(); }
  const ChunkTable& table() const { return table_; }
  const float* chunk(uint32_t chunk) const { return reinterpret_cast<const float*>(chunks_[chunk].data()); }
  const SharedBuffer& buffer(uint32_t chunk) const { return chunks_[chunk]; }
  const std::vector<SharedBuffer>& buffers() const { return chunks_; }
  // Replaces the values of a chunk. `values` must hold as many fp32 as the chunk has elements. If the digest64 of `values` is
  // known, it is passed as `digest`.
  void replace(uint32_t chunk, SharedBuffer values, std::optional<uint64_t> digest = std::nullopt);
  // Returns the digest64 of every chunk. Computes those that are not known yet.
  std::vector<uint64_t> digests() const;
  // Copies into.size() elements to `into`. The first of them is element `first`.
  void read(size_t first, std::span<float> into) const;
  std::vector<float> all() const;

 private:
  ChunkTable table_;
  std::vector<SharedBuffer> chunks_;
  std::vector<std::optional<uint64_t>> digests_;
};

}  // namespace unisono

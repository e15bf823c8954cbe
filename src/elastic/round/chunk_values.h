// A vector of fp32 in chunks, each in memory that is shared and never written. replace() gives a chunk new memory; other
// holders keep the old one unchanged. So values pass from a received result to the next round, to joiners and to the user
// without a copy.
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
  ChunkValues() = default;  // without elements
  // whole: table.elements() fp32; shared, not copied.
  ChunkValues(const ChunkTable& table, const SharedBuffer& whole);

  size_t elements() const { return table_.elements(); }
  const ChunkTable& table() const { return table_; }
  const float* chunk(uint32_t chunk) const { return reinterpret_cast<const float*>(chunks_[chunk].data()); }
  const SharedBuffer& buffer(uint32_t chunk) const { return chunks_[chunk]; }
  const std::vector<SharedBuffer>& buffers() const { return chunks_; }
  // values: as many fp32 as the chunk has elements. digest: their digest64, if it is known.
  void replace(uint32_t chunk, SharedBuffer values, std::optional<uint64_t> digest = std::nullopt);
  // digest64 of every chunk; computes those that are not known.
  std::vector<uint64_t> digests() const;
  // Copies the elements from `first` on.
  void read(size_t first, std::span<float> into) const;
  std::vector<float> all() const;

 private:
  ChunkTable table_;
  std::vector<SharedBuffer> chunks_;
  std::vector<std::optional<uint64_t>> digests_;
};

}  // namespace unisono

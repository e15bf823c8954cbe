// One bit per chunk of a vector: a fixed number of bits, all clear at first. A value.
//
// On the wire: the number of bits as u32, then ceil(bits/8) bytes, lowest bit first, unused bits clear. A reader states how
// many bits it expects. Any other number is corrupt, and nothing is allocated for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "unisono/status.h"

namespace unisono {

class ChunkBits {
 public:
  ChunkBits() = default;
  explicit ChunkBits(size_t size) : size_(size), words_((size + 63) / 64) {}

  size_t size() const { return size_; }
  // These three require index < size().
  bool test(size_t index) const { return (words_[index / 64] >> (index % 64) & 1) != 0; }
  void set(size_t index) { words_[index / 64] |= uint64_t{1} << (index % 64); }
  void reset(size_t index) { words_[index / 64] &= ~(uint64_t{1} << (index % 64)); }

  size_t count() const;
  bool all() const { return count() == size_; }
  bool none() const;

  // Both operands must have the same size.
  ChunkBits& operator|=(const ChunkBits& other);
  ChunkBits& operator&=(const ChunkBits& other);
  friend bool operator==(const ChunkBits&, const ChunkBits&) = default;

  void write(ByteWriter& writer) const;
  // Error: corrupt if the bits are cut, if there are not exactly `size` of them, or if an unused bit is set. The bits are then
  // unchanged.
  Status read(ByteReader& reader, size_t size);

 private:
  size_t size_ = 0;
  std::vector<uint64_t> words_;  // bits from size_ on are clear
};

}  // namespace unisono

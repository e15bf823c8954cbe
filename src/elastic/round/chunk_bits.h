// A fixed number of bits, one for each chunk of a vector. At first all bits are clear. A value.
//
// On the wire, the number of bits comes first, as u32, and then ceil(bits/8) bytes. The lowest bit comes first, and unused bits
// are clear. read() is given the expected number of bits. Any other number is corrupt, and no memory is allocated for it.
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
  // test(), set() and reset() require index < size().
  bool test(size_t index) const { return (words_[index / 64] >> (index % 64) & 1) != 0; }
  void set(size_t index) { words_[index / 64] |= uint64_t{1} << (index % 64); }
  void reset(size_t index) { words_[index / 64] &= ~(uint64_t{1} << (index % 64)); }

  size_t count() const;
  bool all() const { return count() == size_; }
  bool none() const;

  // For |= and &=, both operands must have the same size.
  ChunkBits& operator|=(const ChunkBits& other);
  ChunkBits& operator&=(const ChunkBits& other);
  friend bool operator==(const ChunkBits&, const ChunkBits&) = default;

  void write(ByteWriter& writer) const;
  // Reads the bits. Returns the error corrupt, and changes nothing, if bytes are missing, the number of bits differs from
  // `size`, or an unused bit is set.
  Status read(ByteReader& reader, size_t size);

 private:
  size_t size_ = 0;
  std::vector<uint64_t> words_;  // 64 bits per word; all bits from bit size_ on are clear
};

}  // namespace unisono

// The ranges of one stream that have arrived, as a bitmap, so that a repeated datagram is recognised and counts once.
//
// A stream is the data that one rank sends to this one in one phase of one operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

class RangeArrivals {
 public:
  // Clears the bitmap; keeps its memory.
  void reset(uint32_t ranges);
  uint32_t ranges() const { return ranges_; }
  uint32_t arrived_count() const { return arrived_; }
  uint32_t missing_count() const { return ranges_ - arrived_; }
  double missing_fraction() const { return ranges_ == 0 ? 0 : static_cast<double>(missing_count()) / ranges_; }
  bool complete() const { return arrived_ == ranges_; }
  bool arrived(uint32_t range) const { return (words_[range / 64] >> (range % 64) & 1) != 0; }
  // False: the range had arrived before. range < ranges().
  bool mark(uint32_t range);
  // The first missing range at or after `from`; ranges() if none.
  uint32_t next_missing(uint32_t from) const;
  // Writes the missing ranges of [first, first + 8 * bitmap.size()), bit 0 of byte 0 first, 1 = missing; zeros at `end` and
  // beyond. Returns the number of ones.
  uint32_t missing_bitmap(uint32_t first, uint32_t end, std::span<std::byte> bitmap) const;

 private:
  std::vector<uint64_t> words_;
  uint32_t ranges_ = 0, arrived_ = 0;
};

}  // namespace unisono

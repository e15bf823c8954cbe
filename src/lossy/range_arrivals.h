// A bitmap that records which ranges of one stream have arrived. It also shows whether a datagram is new or a repetition.
//
// A stream is the data that one rank sends to this rank in one phase.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

class RangeArrivals {
 public:
  // Marks all ranges as missing. Keeps the allocated memory.
  void reset(uint32_t ranges);
  uint32_t ranges() const { return ranges_; }
  uint32_t arrived_count() const { return arrived_; }
  uint32_t missing_count() const { return ranges_ - arrived_; }
  double missing_fraction() const { return ranges_ == 0 ? 0 : static_cast<double>(missing_count()) / ranges_; }
  bool complete() const { return arrived_ == ranges_; }
  bool arrived(uint32_t range) const { return (words_[range / 64] >> (range % 64) & 1) != 0; }
  // Marks a range as arrived. Returns false if it had arrived before. Requires range < ranges().
  bool mark(uint32_t range);
  // Returns the first missing range at or after `from`; ranges() if none is missing.
  uint32_t next_missing(uint32_t from) const;
  // Writes a bitmap that shows which of the ranges [first, first + 8 * bitmap.size()) are missing. A 1 means that the range is
  // missing. Bit 0 of byte 0 stands for range `first`. The bits of ranges >= `end` are 0. Returns the number of ones.
  uint32_t missing_bitmap(uint32_t first, uint32_t end, std::span<std::byte> bitmap) const;

 private:
  std::vector<uint64_t> words_;
  uint32_t ranges_ = 0, arrived_ = 0;
};

}  // namespace unisono

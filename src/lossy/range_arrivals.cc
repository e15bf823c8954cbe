#include "lossy/range_arrivals.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace unisono {

void RangeArrivals::reset(uint32_t ranges) {
  words_.assign((uint64_t{ranges} + 63) / 64, 0);
  ranges_ = ranges;
  arrived_ = 0;
}

bool RangeArrivals::mark(uint32_t range) {
  UNISONO_CHECK(range < ranges_);
  const auto bit = uint64_t{1} << (range % 64);
  auto& word = words_[range / 64];
  if ((word & bit) != 0) return false;
  word |= bit;
  ++arrived_;
  return true;
}

uint32_t RangeArrivals::next_missing(uint32_t from) const {
  if (from >= ranges_) return ranges_;
  auto word = from / 64;
  auto missing = ~words_[word] & (~uint64_t{0} << (from % 64));
  while (missing == 0 && ++word < words_.size()) missing = ~words_[word];
  if (missing == 0) return ranges_;
  return std::min(ranges_, static_cast<uint32_t>(word * 64 + static_cast<uint32_t>(std::countr_zero(missing))));
}

uint32_t RangeArrivals::missing_bitmap(uint32_t first, uint32_t end, std::span<std::byte> bitmap) const {
  std::fill(bitmap.begin(), bitmap.end(), std::byte{0});
  const auto stop = std::min<uint64_t>({ranges_, end, first + uint64_t{8} * bitmap.size()});
  uint32_t count = 0;
  for (auto range = next_missing(first); range < stop; range = next_missing(range + 1)) {
    const auto at = range - first;
    bitmap[at / 8] |= std::byte{1} << (at % 8);
    ++count;
  }
  return count;
}

}  // namespace unisono

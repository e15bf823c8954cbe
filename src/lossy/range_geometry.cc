#include "lossy/range_geometry.h"

#include <algorithm>
#include <string>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {
namespace {

constexpr uint32_t datagram_bytes_min = 576, datagram_bytes_max = 65'507;
constexpr uint32_t world_max = 65'535;  // a datagram header has two bytes for the number of a rank
constexpr uint64_t elements_max = uint64_t{1} << 56;
// a datagram header has two bytes for the number of the slice
constexpr uint64_t ranges_max = uint64_t{65'536} * ranges_per_slice;
constexpr size_t plain_block_bytes = 64;  // the size of a cache line, so that shards and ranges begin on cache lines

// Returns how many whole blocks fit into a message of at most `bytes`. Messages may be padded, so the number is found by
// bisection.
uint32_t blocks_that_fit(const WireCodec& codec, uint64_t block, size_t bytes) {
  uint32_t low = 0, high = static_cast<uint32_t>(bytes / plain_block_bytes + 1);
  if (codec.quantizes()) high = static_cast<uint32_t>(bytes);  // a block has more than one byte
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    (codec.message_bytes(middle * block) <= bytes ? low : high) = middle;
  }
  return low;
}

}  // namespace

uint32_t RangeGeometry::block_elements(const WireCodec& codec) {
  return static_cast<uint32_t>(codec.quantizes() ? codec.unit() : plain_block_bytes / element_bytes(codec.dtype));
}

Result<RangeGeometry> RangeGeometry::make(const RangeCut& wanted) {
  auto cut = wanted;
  cut.codec.sends_header = false;
  const auto wrong = [](const std::string& what) { return Status(Code::invalid, "lossy delivery: " + what); };
  if (cut.world == 0 || cut.world > world_max) return wrong(concat("world size is ", cut.world, ": expected 1 to ", world_max));
  if (cut.elements > elements_max)
    return wrong(concat("the tensor has ", cut.elements, " elements: expected at most ", elements_max));
  if (cut.datagram_bytes < datagram_bytes_min || cut.datagram_bytes > datagram_bytes_max) {
    return wrong(
        concat("datagram size is ", cut.datagram_bytes, " bytes: expected ", datagram_bytes_min, " to ", datagram_bytes_max));
  }
  const uint64_t block = block_elements(cut.codec);
  if (cut.shard_unit % block != 0)
    return wrong(concat("shard unit is ", cut.shard_unit, " elements: expected a multiple of ", block, ", the block of ",
                        to_string(cut.codec)));
  const auto blocks = blocks_that_fit(cut.codec, block, cut.datagram_bytes - datagram_header_bytes);
  if (blocks == 0) {
    return wrong(concat("a block of ", to_string(cut.codec), " has ", cut.codec.message_bytes(block),
                        " bytes and does not fit into a datagram of ", cut.datagram_bytes));
  }
  RangeGeometry made;
  made.cut_ = cut;
  const uint64_t unit = std::max<uint64_t>(block, cut.shard_unit), blocks_of_all = cut.world * unit;
  made.shard_elements_ = unit * (cut.elements / blocks_of_all + (cut.elements % blocks_of_all != 0));
  made.range_elements_ = static_cast<uint32_t>(blocks * block);
  made.range_bytes_ = cut.codec.message_bytes(made.range_elements_);
  const auto ranges = made.shard_elements_ / made.range_elements_ + (made.shard_elements_ % made.range_elements_ != 0);
  if (ranges > ranges_max)
    return wrong(concat("a shard needs ", ranges, " datagrams: the header can number at most ", ranges_max));
  return made;
}

ElementSpan RangeGeometry::shard(Rank owner) const {
  UNISONO_CHECK(owner < cut_.world);
  return {std::min(owner * shard_elements_, cut_.elements), std::min((owner + uint64_t{1}) * shard_elements_, cut_.elements)};
}

uint32_t RangeGeometry::ranges(Rank owner) const {
  const auto elements = shard(owner).count();
  return static_cast<uint32_t>(elements / range_elements_ + (elements % range_elements_ != 0));
}

uint32_t RangeGeometry::slices(Rank owner) const { return (ranges(owner) + ranges_per_slice - 1) / ranges_per_slice; }

size_t RangeGeometry::shard_bytes(Rank owner) const {
  const auto count = ranges(owner);
  return count == 0 ? 0 : offset(count - 1) + bytes(owner, count - 1);
}

ElementSpan RangeGeometry::range(Rank owner, uint32_t range) const {
  const auto whole = shard(owner);
  const auto begin = whole.begin + uint64_t{range} * range_elements_;
  UNISONO_CHECK(begin < whole.end);
  return {begin, std::min(begin + range_elements_, whole.end)};
}

size_t RangeGeometry::bytes(Rank owner, uint32_t range) const {
  const auto elements = this->range(owner, range).count();
  return elements == range_elements_ ? range_bytes_ : cut_.codec.message_bytes(elements);
}

bool RangeGeometry::find(Rank owner, uint32_t slice, uint32_t index, uint32_t& range) const {
  if (owner >= cut_.world || index >= ranges_per_slice) return false;
  const auto found = uint64_t{slice} * ranges_per_slice + index;
  if (found >= ranges(owner)) return false;
  range = static_cast<uint32_t>(found);
  return true;
}

}  // namespace unisono

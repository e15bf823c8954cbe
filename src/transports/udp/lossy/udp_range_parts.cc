#include "transports/udp/lossy/udp_range_parts.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace unisono {
namespace {

constexpr uint32_t parts_max = 64;  // RangeParts::Range has one bit per part
static_assert(parts_max * range_part_bytes_with(encrypted_header_bytes) >= 65'507, "every range fits");

uint32_t parts_of(size_t range_bytes, uint32_t part_bytes) {
  return static_cast<uint32_t>((range_bytes + part_bytes - 1) / part_bytes);
}

}  // namespace

RangeParts::Range* RangeParts::find(const DatagramHeader& header) {
  // The parts of a range are sent one after the other, so the range is probably the last one.
  const auto found = std::find_if(waiting_.rbegin(), waiting_.rend(), [&](const Range& range) {
    return range.header.op == header.op && range.header.phase == header.phase && range.header.slice == header.slice &&
           range.header.packet_index == header.packet_index;
  });
  return found == waiting_.rend() ? nullptr : &*found;
}

RangeParts::Range& RangeParts::begin(const DatagramHeader& header, size_t bytes) {
  size_t dropped = 0;
  for (; dropped < waiting_.size() && waiting_bytes_ + bytes > bytes_max; ++dropped)
    waiting_bytes_ -= waiting_[dropped].bytes.size();
  waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<std::ptrdiff_t>(dropped));
  waiting_bytes_ += bytes;
  waiting_.push_back({.header = header, .bytes = std::vector<std::byte>(bytes)});
  return waiting_.back();
}

DatagramFault RangeParts::add(const DatagramHeader& header, std::span<const std::byte> payload) {
  whole_ = false;
  RangePart part;
  if (payload.size() <= sizeof part) return DatagramFault::size;
  std::memcpy(&part, payload.data(), sizeof part);
  const auto bytes = payload.subspan(sizeof part);
  const size_t at = size_t{part.index} * part_bytes_;
  if (at >= part.range_bytes || bytes.size() != std::min<size_t>(part_bytes_, part.range_bytes - at))
    return DatagramFault::size;
  auto* range = find(header);
  if (range != nullptr && range->bytes.size() != part.range_bytes) return DatagramFault::size;
  if (range == nullptr) range = &begin(header, part.range_bytes);
  const uint64_t bit = uint64_t{1} << part.index;
  if ((range->arrived & bit) != 0) return DatagramFault::duplicate;
  range->arrived |= bit;
  std::memcpy(range->bytes.data() + at, bytes.data(), bytes.size());
  if (static_cast<uint32_t>(std::popcount(range->arrived)) < parts_of(part.range_bytes, part_bytes_))
    return DatagramFault::none;
  whole_ = true;
  header_ = header;
  header_.flags = static_cast<uint8_t>(header_.flags & ~datagram_part);
  header_.payload_bytes = part.range_bytes;
  waiting_bytes_ -= range->bytes.size();
  joined_ = std::move(range->bytes);
  waiting_.erase(waiting_.begin() + (range - waiting_.data()));
  return DatagramFault::none;
}

}  // namespace unisono

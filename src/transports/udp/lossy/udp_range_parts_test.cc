#include "transports/udp/lossy/udp_range_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono {
namespace {

DatagramHeader header_of(uint32_t index, uint32_t op = 5) {
  DatagramHeader header;
  header.op = op;
  header.phase = 1;
  header.slice = 2;
  header.packet_index = index;
  header.contributors = 4;
  header.flags = datagram_tail | datagram_part;
  return header;
}

Bytes range_of(size_t bytes, uint64_t seed = 1) {
  Random random(seed);
  Bytes range(bytes);
  for (auto& byte : range) byte = static_cast<std::byte>(random.next());
  return range;
}

Bytes part_of(const Bytes& range, uint16_t index) {
  const RangePart part{.index = index, .range_bytes = static_cast<uint16_t>(range.size())};
  const size_t at = size_t{index} * range_part_bytes, bytes = std::min<size_t>(range_part_bytes, range.size() - at);
  Bytes payload(sizeof part + bytes);
  std::memcpy(payload.data(), &part, sizeof part);
  std::memcpy(payload.data() + sizeof part, range.data() + at, bytes);
  return payload;
}

TEST(RangeParts, parts_in_any_order_make_the_whole_range) {
  const auto range = range_of(8916);
  std::vector<uint16_t> order{0, 1, 2, 3, 4, 5, 6, 7};
  for (int round = 0; round < 20; ++round) {
    RangeParts parts;
    for (size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(parts.add(header_of(9), part_of(range, order[i])), DatagramFault::none);
      EXPECT_EQ(parts.whole(), i + 1 == order.size());
    }
    ASSERT_EQ(parts.bytes().size(), range.size());
    EXPECT_TRUE(std::equal(range.begin(), range.end(), parts.bytes().begin()));
    EXPECT_EQ(parts.header().packet_index, 9u);
    EXPECT_EQ(parts.header().contributors, 4u);
    EXPECT_EQ(parts.header().flags, datagram_tail) << "as if it had come in one piece";
    EXPECT_EQ(parts.header().payload_bytes, 8916u);
    EXPECT_EQ(parts.waiting(), 0u);
    std::next_permutation(order.begin(), order.end());
  }
}

TEST(RangeParts, parts_of_several_ranges_and_operations_are_kept_apart) {
  RangeParts parts;
  const auto one = range_of(1416, 1), two = range_of(1416, 2), later = range_of(1400, 3);
  EXPECT_EQ(parts.add(header_of(0), part_of(one, 0)), DatagramFault::none);
  EXPECT_EQ(parts.add(header_of(1), part_of(two, 0)), DatagramFault::none);
  EXPECT_EQ(parts.add(header_of(0, 6), part_of(later, 1)), DatagramFault::none);
  EXPECT_EQ(parts.waiting(), 3u);
  EXPECT_EQ(parts.add(header_of(1), part_of(two, 1)), DatagramFault::none);
  ASSERT_TRUE(parts.whole());
  EXPECT_TRUE(std::equal(two.begin(), two.end(), parts.bytes().begin()));
  EXPECT_EQ(parts.add(header_of(0), part_of(one, 1)), DatagramFault::none);
  ASSERT_TRUE(parts.whole());
  EXPECT_TRUE(std::equal(one.begin(), one.end(), parts.bytes().begin()));
}

TEST(RangeParts, a_part_that_comes_twice_is_a_duplicate) {
  RangeParts parts;
  const auto range = range_of(3000);
  EXPECT_EQ(parts.add(header_of(0), part_of(range, 1)), DatagramFault::none);
  EXPECT_EQ(parts.add(header_of(0), part_of(range, 1)), DatagramFault::duplicate);
  EXPECT_FALSE(parts.whole());
}

TEST(RangeParts, size_of_a_part_without_bytes) {
  RangeParts parts;
  for (size_t bytes = 0; bytes <= sizeof(RangePart); ++bytes)
    EXPECT_EQ(parts.add(header_of(0), Bytes(bytes)), DatagramFault::size) << bytes;
  EXPECT_EQ(parts.waiting(), 0u);
}

TEST(RangeParts, size_of_a_part_that_is_too_short_or_too_long) {
  RangeParts parts;
  auto part = part_of(range_of(1416), 0);
  part.pop_back();
  EXPECT_EQ(parts.add(header_of(0), part), DatagramFault::size);
  part = part_of(range_of(1416), 1);
  part.push_back(std::byte{0});
  EXPECT_EQ(parts.add(header_of(0), part), DatagramFault::size);
}

TEST(RangeParts, size_of_a_part_behind_the_end_of_its_range) {
  RangeParts parts;
  auto part = part_of(range_of(1416), 1);
  const RangePart wrong{.index = 2, .range_bytes = 1416};
  std::memcpy(part.data(), &wrong, sizeof wrong);
  EXPECT_EQ(parts.add(header_of(0), part), DatagramFault::size);
}

TEST(RangeParts, size_of_a_part_that_contradicts_another_part) {
  RangeParts parts;
  EXPECT_EQ(parts.add(header_of(0), part_of(range_of(3000), 0)), DatagramFault::none);
  EXPECT_EQ(parts.add(header_of(0), part_of(range_of(3001), 1)), DatagramFault::size);
}

TEST(RangeParts, memory_is_limited_and_the_oldest_range_is_dropped) {
  RangeParts parts;
  const auto range = range_of(8916);
  for (uint32_t index = 0; index < 1000; ++index) {
    EXPECT_EQ(parts.add(header_of(index), part_of(range, 0)), DatagramFault::none);
    EXPECT_LE(parts.waiting() * range.size(), RangeParts::bytes_max);
  }
  EXPECT_EQ(parts.waiting(), RangeParts::bytes_max / 8916);
  for (uint16_t part = 1; part < 8; ++part) EXPECT_EQ(parts.add(header_of(999), part_of(range, part)), DatagramFault::none);
  EXPECT_TRUE(parts.whole()) << "the newest range is kept";
}

TEST(RangeParts, the_longest_possible_range_fits) {
  RangeParts parts;
  const auto range = range_of(65'507 - datagram_header_bytes);
  const auto count = (range.size() + range_part_bytes - 1) / range_part_bytes;
  for (size_t part = 0; part < count; ++part)
    EXPECT_EQ(parts.add(header_of(0), part_of(range, static_cast<uint16_t>(part))), DatagramFault::none);
  ASSERT_TRUE(parts.whole());
  EXPECT_TRUE(std::equal(range.begin(), range.end(), parts.bytes().begin()));
}

TEST(RangeParts, random_parts_never_cause_writes_outside_of_a_range) {
  const uint64_t seed = 11;
  SCOPED_TRACE(seed);
  Random random(seed);
  RangeParts parts;
  for (int i = 0; i < 20'000; ++i) {
    Bytes payload(random.below(1300));
    for (auto& byte : payload) byte = static_cast<std::byte>(random.next());
    if (payload.size() >= sizeof(RangePart) && random.chance(0.8)) {
      const RangePart part{.index = static_cast<uint16_t>(random.below(60)),
                           .range_bytes = static_cast<uint16_t>(random.next())};
      std::memcpy(payload.data(), &part, sizeof part);
      const size_t at = size_t{part.index} * range_part_bytes;
      if (at < part.range_bytes) payload.resize(sizeof part + std::min<size_t>(range_part_bytes, part.range_bytes - at));
    }
    (void)parts.add(header_of(static_cast<uint32_t>(random.below(4))), payload);
    EXPECT_TRUE(!parts.whole() || parts.bytes().size() == parts.header().payload_bytes);
  }
}

}  // namespace
}  // namespace unisono

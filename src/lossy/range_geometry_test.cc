#include "lossy/range_geometry.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/concat.h"
#include "base/random.h"

namespace unisono {
namespace {

RangeGeometry cut(const RangeCut& cut) {
  auto made = RangeGeometry::make(cut);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return *made;
}

WireCodec quantized(uint8_t bits, uint16_t group) {
  return {.kind = StepCodec::Kind::quantize, .block = {.bits = bits, .group = group, .metadata = kernels::Metadata::bf16}};
}

// Check D1 of docs/design/methods/packet_loss.md, "Checked values": s = 125,008 and E = 352.
TEST(RangeGeometry, cuts_a_million_fp32_elements_as_specified) {
  const auto geometry = cut({.elements = 1'000'003, .world = 8, .datagram_bytes = 1472, .codec = {}});
  EXPECT_EQ(geometry.range_elements(), 352u);
  EXPECT_EQ(geometry.range_bytes(), 1408u);
  EXPECT_EQ(geometry.shard_elements(), 125'008u);
  for (Rank owner = 0; owner < 7; ++owner) {
    EXPECT_EQ(geometry.ranges(owner), 356u) << owner;
    EXPECT_EQ(geometry.range(owner, 355).count(), 48u) << owner;
    EXPECT_EQ(geometry.slices(owner), 1u);
  }
  EXPECT_EQ(geometry.ranges(7), 355u);
  EXPECT_EQ(geometry.range(7, 354).count(), 339u);
  EXPECT_EQ(geometry.range(7, 354).end, 1'000'003u);
  EXPECT_EQ(geometry.shard_bytes(7), (1'000'003u - 7 * 125'008u) * 4);
}

// Check D1 of docs/design/methods/packet_loss.md: a slice has 4096 ranges.
TEST(RangeGeometry, counts_ranges_beyond_4096_in_further_slices) {
  const auto geometry = cut({.elements = 3'000'000, .world = 2, .datagram_bytes = 1472, .codec = {}});
  EXPECT_EQ(geometry.ranges(0), 4262u);
  EXPECT_EQ(geometry.slices(0), 2u);
  uint32_t range = 0;
  EXPECT_TRUE(geometry.find(0, 1, 0, range));
  EXPECT_EQ(range, 4096u);
  EXPECT_TRUE(geometry.find(0, 1, 165, range));
  EXPECT_EQ(range, 4261u);
  EXPECT_FALSE(geometry.find(0, 1, 166, range));
  EXPECT_FALSE(geometry.find(0, 0, 4096, range));
  EXPECT_FALSE(geometry.find(0, 2, 0, range));
  EXPECT_FALSE(geometry.find(0, UINT32_MAX, UINT32_MAX, range));
  EXPECT_FALSE(geometry.find(2, 0, 0, range));
}

// Check D1 of docs/design/methods/packet_loss.md: 5 elements are less than one block, so seven shards are empty.
TEST(RangeGeometry, gives_five_elements_to_the_first_of_eight_ranks) {
  const auto geometry = cut({.elements = 5, .world = 8, .datagram_bytes = 1472, .codec = {}});
  EXPECT_EQ(geometry.shard(0), (ElementSpan{0, 5}));
  EXPECT_EQ(geometry.ranges(0), 1u);
  EXPECT_EQ(geometry.shard_bytes(0), 20u);
  for (Rank owner = 1; owner < 8; ++owner) {
    EXPECT_EQ(geometry.shard(owner).count(), 0u);
    EXPECT_EQ(geometry.ranges(owner), 0u);
    EXPECT_EQ(geometry.slices(owner), 0u);
    EXPECT_EQ(geometry.shard_bytes(owner), 0u);
    uint32_t range = 0;
    EXPECT_FALSE(geometry.find(owner, 0, 0, range));
  }
}

TEST(RangeGeometry, a_tensor_without_elements_has_no_ranges) {
  const auto geometry = cut({.elements = 0, .world = 3, .datagram_bytes = 1200, .codec = {}});
  for (Rank owner = 0; owner < 3; ++owner) EXPECT_EQ(geometry.ranges(owner), 0u);
}

TEST(RangeGeometry, blocks_of_plain_elements_have_64_bytes_of_any_type) {
  const auto elements = [](DType type) {
    return cut({.elements = 1, .world = 2, .datagram_bytes = 1472, .codec = {.dtype = type, .block = {}}}).shard_elements();
  };
  EXPECT_EQ(elements(DType::f32), 16u);
  EXPECT_EQ(elements(DType::bf16), 32u);
  EXPECT_EQ(elements(DType::f16), 32u);
  EXPECT_EQ(elements(DType::f64), 8u);
}

// Worked out from docs/design/methods/flash.md: a group takes bits · group / 8 bytes of codes, 2 metadata values (4 with
// spikes) and, with spikes, 2 indices. No header travels in a datagram.
TEST(RangeGeometry, a_quantised_range_has_no_header_and_exactly_the_bytes_of_its_groups) {
  struct Case {
    kernels::BlockFormat block;
    uint32_t payload_bytes, groups, range_bytes;
  };
  using kernels::Metadata;
  for (const auto& [block, payload_bytes, groups, range_bytes] :
       {Case{{.bits = 3, .group = 32, .metadata = Metadata::f16, .spikes = true}, 1200, 54, 1188},
        Case{{.bits = 2, .group = 128, .metadata = Metadata::f32, .spikes = true}, 1450, 29, 1450},
        Case{{.bits = 4, .group = 128, .metadata = Metadata::bf16, .spikes = false}, 1416, 20, 1360},
        Case{{.bits = 8, .group = 32, .metadata = Metadata::f16, .spikes = false}, 36 * 39, 39, 36 * 39}}) {
    const WireCodec codec{.kind = StepCodec::Kind::quantize, .block = block};
    SCOPED_TRACE(to_string(codec));
    const auto geometry =
        cut({.elements = 1'000'000, .world = 2, .datagram_bytes = payload_bytes + datagram_header_bytes, .codec = codec});
    EXPECT_EQ(geometry.range_elements(), groups * block.group);
    EXPECT_EQ(geometry.range_bytes(), range_bytes);
    EXPECT_FALSE(geometry.cut().codec.sends_header);
  }
}

// A quantised message may be padded, so the test cannot compute the size by a division. It checks that one more group does not
// fit.
TEST(RangeGeometry, a_datagram_holds_as_many_whole_groups_as_fit) {
  for (const uint8_t bits : {2, 3, 4, 5, 6, 8}) {
    for (const uint16_t group : {32, 128, 256}) {
      const auto geometry = cut({.elements = 100'000, .world = 3, .datagram_bytes = 1472, .codec = quantized(bits, group)});
      const auto& codec = geometry.cut().codec;
      SCOPED_TRACE(to_string(codec));
      EXPECT_EQ(geometry.range_elements() % group, 0u);
      EXPECT_LE(codec.message_bytes(geometry.range_elements()), 1472u - 56);
      EXPECT_GT(codec.message_bytes(geometry.range_elements() + group), 1472u - 56);
    }
  }
}

TEST(RangeGeometry, refuses_sizes_that_no_datagram_can_carry) {
  const auto code = [](const RangeCut& wrong) { return RangeGeometry::make(wrong).status().code(); };
  EXPECT_EQ(code({.elements = 1, .world = 0, .datagram_bytes = 1472, .codec = {}}), Code::invalid);
  EXPECT_EQ(code({.elements = 1, .world = 65'536, .datagram_bytes = 1472, .codec = {}}), Code::invalid);
  EXPECT_EQ(code({.elements = 1, .world = 2, .datagram_bytes = 575, .codec = {}}), Code::invalid);
  EXPECT_EQ(code({.elements = 1, .world = 2, .datagram_bytes = 65'508, .codec = {}}), Code::invalid);
  EXPECT_EQ(code({.elements = UINT64_MAX, .world = 2, .datagram_bytes = 1472, .codec = {}}), Code::invalid);
  EXPECT_EQ(code({.elements = uint64_t{1} << 50, .world = 2, .datagram_bytes = 1472, .codec = {}}), Code::invalid);
  // The largest group of a codec fits into the smallest datagram.
  EXPECT_EQ(code({.elements = 1, .world = 2, .datagram_bytes = 576, .codec = quantized(8, 256)}), Code::ok);
}

void expect_partition(const RangeGeometry& geometry) {
  uint64_t at = 0;
  for (Rank owner = 0; owner < geometry.cut().world; ++owner) {
    const auto shard = geometry.shard(owner);
    ASSERT_EQ(shard.begin, at);
    size_t offset = 0;
    for (uint32_t range = 0; range < geometry.ranges(owner); ++range) {
      const auto span = geometry.range(owner, range);
      ASSERT_EQ(span.begin, at);
      ASSERT_GT(span.count(), 0u);
      ASSERT_LE(span.count(), geometry.range_elements());
      ASSERT_EQ((span.begin - shard.begin) % geometry.cut().codec.unit(), 0u);
      at = span.end;
      ASSERT_EQ(geometry.offset(range), offset);
      ASSERT_EQ(geometry.bytes(owner, range), geometry.cut().codec.message_bytes(span.count()));
      ASSERT_LE(geometry.bytes(owner, range) + datagram_header_bytes, geometry.cut().datagram_bytes);
      offset += geometry.bytes(owner, range);
      uint32_t found = UINT32_MAX;
      ASSERT_TRUE(geometry.find(owner, range / ranges_per_slice, range % ranges_per_slice, found));
      ASSERT_EQ(found, range);
    }
    ASSERT_EQ(at, shard.end);
    ASSERT_EQ(geometry.shard_bytes(owner), offset);
    uint32_t beyond = 0;
    ASSERT_FALSE(
        geometry.find(owner, geometry.ranges(owner) / ranges_per_slice, geometry.ranges(owner) % ranges_per_slice, beyond));
  }
  ASSERT_EQ(at, geometry.cut().elements);
}

TEST(RangeGeometry, shards_and_ranges_hold_every_element_exactly_once) {
  constexpr uint64_t seed = 20;
  Random random(seed);
  SCOPED_TRACE(concat("seed ", seed));
  constexpr DType types[] = {DType::f32, DType::bf16, DType::f16, DType::f64};
  constexpr uint16_t groups[] = {32, 64, 128, 256};
  for (int i = 0; i < 2000; ++i) {
    RangeCut made{.elements = random.below(uint64_t{1} << random.below(21)),
                  .world = static_cast<uint32_t>(1 + random.below(random.chance(0.1) ? 300 : 17)),
                  .datagram_bytes = static_cast<uint32_t>(576 + random.below(random.chance(0.1) ? 64'932 : 1000)),
                  .codec = {.dtype = types[random.below(4)], .block = {}}};
    if (random.chance(0.5)) made.codec = quantized(static_cast<uint8_t>(2 + random.below(7)), groups[random.below(4)]);
    SCOPED_TRACE(
        concat(made.elements, " elements, ", made.world, " ranks, ", made.datagram_bytes, " bytes, ", to_string(made.codec)));
    const auto geometry = RangeGeometry::make(made);
    ASSERT_TRUE(geometry.ok()) << geometry.status().to_string();
    expect_partition(*geometry);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace unisono

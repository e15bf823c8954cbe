// Tests of is_block: it must refuse bytes that no encoder writes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "base/random.h"
#include "kernels/blocks.h"
#include "kernels/blocks_group.h"
#include "kernels/blocks_test_support.h"
#include "kernels/golden_test_support.h"

namespace unisono::kernels {
namespace {

TEST(Blocks, bytes_that_no_encoder_writes_are_refused) {
  const auto f = format(5, 32, Metadata::f16, true);
  const auto good = encode(f, gold(34, 3));
  const auto layout = layout_of(f, 34);
  const auto refused = [&](size_t at, std::initializer_list<uint8_t> bytes, const char* what) {
    auto bad = good;
    std::copy(bytes.begin(), bytes.end(), bad.begin() + static_cast<std::ptrdiff_t>(at));
    EXPECT_FALSE(is_block(f, bad.data(), bad.size(), 34)) << what;
  };
  ASSERT_TRUE(is_block(f, good.data(), good.size(), 34));
  EXPECT_FALSE(is_block(f, good.data(), good.size() - 1, 34));
  EXPECT_FALSE(is_block(f, good.data(), good.size(), 33)) << "an element less, so some bits belong to no element";
  EXPECT_FALSE(is_block(f, good.data(), good.size(), 66));
  refused(layout.padding, {1}, "padding");
  refused(layout.planes[0].offset + 17, {0x10}, "a bit behind the last code");
  refused(layout.planes[1].offset + 4, {0x04}, "a bit behind the last code, second plane");
  refused(layout.scales, {0x00, 0xBC}, "a negative scale");
  refused(layout.scales, {0x00, 0x7C}, "an infinite scale");
  refused(layout.scales + 2, {0x00, 0xFC}, "an infinite minimum");
  refused(layout.scales + 6, {0x00, 0x7E}, "a minimum that is no number where the scale is one");
  refused(layout.spikes, {0x01, 0x7E}, "a spike that is no number");
  refused(layout.spikes + 2, {0x00, 0x7C}, "an infinite spike");
  refused(layout.spike_indices, {32}, "an index beyond the group");
  refused(layout.spike_indices + 3, {2}, "an index beyond the last group");
  EXPECT_TRUE(is_block(f, good.data(), 0, 0));
}

// Returns whether is_block() must accept a group with these numbers in its header.
bool is_valid_header(const GroupHeader& header) {
  if (header.poisoned()) return true;
  for (const float number : {header.minimum, header.low, header.high}) {
    if (!std::isfinite(number)) return false;
  }
  return std::isfinite(header.scale) && header.scale >= 0;
}

TEST(Blocks, is_block_checks_the_value_of_every_number) {
  Random random(19);
  for (const auto metadata : {Metadata::f16, Metadata::bf16, Metadata::f32}) {
    const auto f = format(2, 32, metadata, true);
    const auto good = encode(f, gold(64, 3));
    const auto layout = layout_of(f, 64);
    const size_t z = metadata_bytes(metadata);
    for (uint32_t top = 0; top < 1u << 16; ++top) {
      const uint32_t bits = z == 2 ? top : top << 16 | static_cast<uint32_t>(random.below(3));
      for (size_t number = 0; number < 4; ++number) {  // scale, minimum, lowest and highest element of the second group
        auto block = good;
        const size_t at = (number < 2 ? layout.scales : layout.spikes) + (2 + number % 2) * z;
        std::memcpy(block.data() + at, &bits, z);
        const auto header = load_header(f, layout, 1, reinterpret_cast<const std::byte*>(block.data()));
        ASSERT_EQ(is_block(f, block.data(), block.size(), 64), is_valid_header(header))
            << std::hex << bits << " as number " << number;
      }
    }
  }
}

}  // namespace
}  // namespace unisono::kernels

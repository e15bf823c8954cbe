// Blocks of many groups. The kernels process 16 groups at a time and leave unusual groups to the reference. An unusual group
// may be anywhere in a block; the kernels must still write the same bytes as the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/random.h"
#include "kernels/blocks.h"
#include "kernels/blocks_group.h"
#include "kernels/dispatch.h"
#include "kernels/test_support.h"

namespace unisono::kernels {
namespace {

float uniform(Random& random) { return static_cast<float>(random.below(1u << 24)) / (1u << 23) - 1; }

// Fills one group with values of a random kind. Some kinds are common in practice; the kernels handle the others specially.
void fill_group(Random& random, float* values, size_t size) {
  const uint64_t kind = random.below(16);
  const auto some = [&]() -> float& { return values[random.below(size)]; };
  for (size_t i = 0; i < size; ++i) {
    const float u = uniform(random);
    switch (kind) {
      case 0: values[i] = std::max(u, 0.0f); break;  // many elements equal to the minimum
      case 1: values[i] = std::min(u, 0.0f); break;
      case 2: values[i] = -0.0f; break;
      case 3: values[i] = u < 0.9f ? 0.0f : u * 1e-31f; break;  // zeros and values that count as zero
      case 4: values[i] = u * 0x1p-98f; break;                  // so small that codes must be clamped to their range
      case 5: values[i] = std::ldexp(u, -90 - static_cast<int>(random.below(60))); break;
      case 6: values[i] = static_cast<float>(random.below(3)); break;  // a few different values, each many times
      case 7: values[i] = u * 60000; break;
      case 8: values[i] = u * 0x1p125f; break;
      default: values[i] = u;
    }
  }
  if (kind == 9) some() = random.below(2) == 0 ? nan : -inf;
  if (kind == 10) some() = random.below(2) == 0 ? 66000.0f : -0x1.8p126f;
  if (kind == 11) some() = some() = 65504;
  if (kind == 12) some() = 1e6f, some() = -1e-30f;
  // spikes at the first and last element
  if (kind == 13) values[random.below(2) * (size - 1)] = 7, values[random.below(2) * (size - 1)] = -7;
}

std::vector<BlockFormat> formats(Random& random) {
  std::vector<BlockFormat> all;
  for (uint8_t bits = 2; bits <= 8; ++bits) {
    for (const uint16_t group : {32, 64, 128, 256}) {
      for (const auto metadata : {Metadata::f16, Metadata::bf16, Metadata::f32}) {
        for (const bool spikes : {false, true}) {
          all.push_back({.bits = bits, .group = group, .metadata = metadata, .spikes = spikes, .poison = random.below(4) == 0});
        }
      }
    }
  }
  return all;
}

BlockBytes elements_of(DType type, const Floats& values) {
  BlockBytes elements(values.size() * element_bytes(type));
  if (type == DType::f32) std::memcpy(elements.data(), values.data(), elements.size());
  else convert_reference(type, elements.data(), DType::f32, values.data(), values.size());
  return elements;
}

void check_all_targets(const BlockFormat& f, DType type, const BlockBytes& elements, const Floats& sums) {
  const size_t count = sums.size();
  BlockBytes wanted(block_bytes(f, count)), wanted_back(elements.size());
  Floats wanted_sums(sums);
  BlockCounts wanted_counts;
  encode_block_reference(f, type, elements.data(), count, wanted.data(), wanted_counts);
  decode_block_reference(f, wanted.data(), count, type, wanted_back.data(), wanted_counts);
  decode_add_block_reference(f, wanted.data(), count, wanted_sums.data());
  for (const char* target : targets()) {
    ASSERT_TRUE(force_target(target));
    const auto where = ::testing::Message()
                       << target << ": " << int{f.bits} << " bits, group " << f.group << ", " << count << " of " << name(type);
    BlockBytes block(wanted.size(), 0xEE), back(elements.size(), 0xEE);
    Floats added(sums);
    BlockCounts counts;
    encode_block(f, type, elements.data(), count, block.data(), counts);
    ASSERT_EQ(block, wanted) << where;
    ASSERT_TRUE(is_block(f, block.data(), block.size(), count)) << where;
    decode_block(f, block.data(), count, type, back.data(), counts);
    ASSERT_EQ(back, wanted_back) << where;
    decode_add_block(f, block.data(), count, added.data());
    ASSERT_EQ(std::memcmp(added.data(), wanted_sums.data(), count * 4), 0) << where;
    EXPECT_EQ(counts.saturated, wanted_counts.saturated) << where;
    EXPECT_EQ(counts.nonfinite_groups, wanted_counts.nonfinite_groups) << where;
  }
  force_target("");
}

TEST(BlockKernels, equal_the_reference_for_many_groups) {
  Random random(23);
  for (const auto& f : formats(random)) {
    for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
      // Up to three batches of 16 groups. The last batch and the last group are mostly incomplete.
      const size_t groups = 1 + random.below(48), count = groups * f.group - (random.below(3) == 0 ? 0 : random.below(f.group));
      Floats values(groups * f.group), sums(count);
      for (size_t i = 0; i < values.size(); i += f.group) fill_group(random, values.data() + i, f.group);
      for (auto& sum : sums) sum = random.below(50) == 0 ? -inf : uniform(random);
      values.resize(count);
      check_all_targets(f, type, elements_of(type, values), sums);
    }
  }
}

// A value below 2^-100 counts as zero in comparisons. But its code is computed from its true value, and may then be outside the
// range of codes. So the code must be clamped.
TEST(BlockKernels, values_that_count_as_zero_have_codes_of_the_grid) {
  for (uint8_t bits = 2; bits <= 8; ++bits) {
    for (const auto metadata : {Metadata::bf16, Metadata::f32}) {
      for (const float sign : {-1.0f, 1.0f}) {
        Floats values(512);
        const auto steps = static_cast<float>((1u << bits) - 1);
        for (size_t i = 0; i < values.size(); ++i)
          values[i] = sign * 0x1p-100f * (i % 4 == 0 ? steps : i % 4 == 1 ? -0.99f : static_cast<float>(i % 3));
        check_all_targets({.bits = bits, .group = 64, .metadata = metadata}, DType::f32, elements_of(DType::f32, values),
                          values);
      }
    }
  }
}

}  // namespace
}  // namespace unisono::kernels

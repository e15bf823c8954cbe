#include "elastic/round/chunk_values.h"

#include <gtest/gtest.h>

#include <numeric>

#include "wire/digest.h"

namespace unisono {
namespace {

constexpr size_t elements = 1100;
const ChunkTable table(elements, 1);  // four chunks; the last one is shorter
const size_t each = table.chunk_elements();

SharedBuffer buffer_of(const std::vector<float>& values) { return SharedBuffer::copy(std::as_bytes(std::span(values))); }

std::vector<float> counting(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.f);
  return values;
}

TEST(ChunkValues, are_read_across_chunks_from_any_element_on) {
  const ChunkValues values(table, buffer_of(counting(elements)));
  ASSERT_EQ(table.chunks(), 4u);
  ASSERT_LT(table.count(3), each);
  EXPECT_EQ(values.all(), counting(elements));
  std::vector<float> part(2 * each);
  values.read(each - 1, part);
  for (size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], static_cast<float>(each - 1 + i));
  values.read(elements, {});
}

TEST(ChunkValues, replacing_a_chunk_leaves_other_holders_unchanged) {
  const auto whole = buffer_of(counting(elements));
  ChunkValues values(table, whole);
  const auto held = values;
  values.replace(3, buffer_of(std::vector<float>(table.count(3), 7)));
  EXPECT_EQ(held.all(), counting(elements));
  EXPECT_EQ(values.all()[3 * each], 7);
  EXPECT_EQ(values.all()[3 * each - 1], static_cast<float>(3 * each - 1));
  EXPECT_EQ(values.chunk(0), held.chunk(0)) << "a chunk that was not replaced is not copied";
}

TEST(ChunkValues, digests_are_computed_or_taken_if_known) {
  ChunkValues values(table, buffer_of(counting(elements)));
  for (uint32_t chunk = 0; chunk < 4; ++chunk) EXPECT_EQ(values.digests()[chunk], digest64(values.buffer(chunk).view()));
  const auto ones = buffer_of(std::vector<float>(each, 1));
  values.replace(1, ones, 42);
  EXPECT_EQ(values.digests()[1], 42u);
  values.replace(1, ones);
  EXPECT_EQ(values.digests()[1], digest64(ones.view()));
}

TEST(ChunkValues, may_have_no_elements) {
  const ChunkValues none(ChunkTable(0, 4), {});
  EXPECT_EQ(none.elements(), 0u);
  EXPECT_TRUE(none.digests().empty());
  none.read(0, {});
  EXPECT_EQ(ChunkValues().elements(), 0u);
}

}  // namespace
}  // namespace unisono

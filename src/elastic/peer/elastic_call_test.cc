// Adds the result of an averaging step to tensors that changed during the step. Chunk boundaries and tensor boundaries differ.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "elastic/peer/elastic_run.h"
#include "elastic/round/chunk_table.h"

namespace unisono::internal {
namespace {

constexpr size_t elements = 1000;
const ChunkTable table(elements, 4);  // 1000 elements in chunks of 256; the last chunk is shorter

float contributed(size_t i) { return static_cast<float>(i); }
float mean(size_t i) { return static_cast<float>(2 * i + 1); }

// Runs ElasticCall::take() on tensors of these sizes, and returns their elements. contributed(i) are the values when the
// averaging step began. Since then every third element has grown by 0.5.
std::vector<float> taken(const std::vector<size_t>& sizes, const std::vector<bool>& replaced) {
  std::vector<float> before(elements), means(elements), values(elements);
  for (size_t i = 0; i < elements; ++i)
    before[i] = contributed(i), means[i] = mean(i), values[i] = contributed(i) + (i % 3 == 0 ? 0.5F : 0.0F);
  ElasticCall call;
  call.overlaps = call.done = true;
  call.step.values = ChunkValues(table, SharedBuffer::copy(std::as_bytes(std::span(means))));
  call.step.contributed = SharedBuffer::copy(std::as_bytes(std::span(before)));
  call.step.replaced = replaced;
  size_t at = 0;
  for (const auto size : sizes) call.tensors.push_back(std::span(values).subspan(at, size)), at += size;
  EXPECT_EQ(at, elements);
  EXPECT_TRUE(call.take().ok());
  return values;
}

TEST(ElasticCall, local_steps_during_the_averaging_step_are_added_to_the_mean) {
  for (const auto& sizes : {std::vector<size_t>{1000}, {1, 255, 300, 0, 444}, {257, 511, 1, 1, 230}}) {
    const auto values = taken(sizes, std::vector<bool>(table.chunks(), false));
    for (size_t i = 0; i < elements; ++i)
      ASSERT_EQ(values[i], mean(i) + (i % 3 == 0 ? 0.5F : 0.0F)) << i << " of tensors " << sizes.size();
  }
}

TEST(ElasticCall, a_newcomers_chunks_become_the_mean_despite_local_steps) {
  std::vector<bool> replaced(table.chunks(), false);
  replaced[1] = true;
  const auto values = taken({100, 500, 400}, replaced);
  for (size_t i = 0; i < elements; ++i)
    ASSERT_EQ(values[i], mean(i) + (i % 3 == 0 && i / table.chunk_elements() != 1 ? 0.5F : 0.0F)) << i;
}

// The contribution had a NaN, so its first chunk was refused and has kept the contribution's memory. The caller has mended the
// tensor during the averaging step.
TEST(ElasticCall, a_chunk_that_no_average_replaced_leaves_the_tensor_as_it_is) {
  std::vector<float> before(elements, 1), values(elements, 2);
  before[7] = std::numeric_limits<float>::quiet_NaN();
  ElasticCall call;
  call.overlaps = call.done = true;
  call.step.contributed = SharedBuffer::copy(std::as_bytes(std::span(before)));
  call.step.values = ChunkValues(table, call.step.contributed);
  for (uint32_t chunk = 1; chunk < table.chunks(); ++chunk) {
    auto mean = SharedBuffer::make(table.count(chunk) * sizeof(float));
    std::fill_n(reinterpret_cast<float*>(mean.data()), table.count(chunk), 5.F);
    call.step.values.replace(chunk, std::move(mean));
  }
  call.step.replaced.assign(table.chunks(), false);
  call.tensors = {std::span(values)};
  ASSERT_TRUE(call.take().ok());
  for (size_t i = 0; i < elements; ++i) ASSERT_EQ(values[i], i < table.chunk_elements() ? 2 : 6) << i;
}

}  // namespace
}  // namespace unisono::internal

// Bringing the result of an averaging step into tensors that changed meanwhile, with chunk and tensor boundaries that differ.
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "elastic/peer/elastic_run.h"
#include "elastic/round/chunk_table.h"

namespace unisono::internal {
namespace {

constexpr size_t elements = 1000;
const ChunkTable table(elements, 4);  // chunks of 256, the last one shorter

float given(size_t i) { return static_cast<float>(i); }
float mean(size_t i) { return static_cast<float>(2 * i + 1); }

// The result in tensors of these sizes. The averaging step began with `given`; since then every third element has moved by 0.5.
std::vector<float> taken(const std::vector<size_t>& sizes, const std::vector<bool>& replaced) {
  std::vector<float> before(elements), means(elements), values(elements);
  for (size_t i = 0; i < elements; ++i)
    before[i] = given(i), means[i] = mean(i), values[i] = given(i) + (i % 3 == 0 ? 0.5F : 0.0F);
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

TEST(ElasticCall, steps_that_were_taken_meanwhile_are_added_to_the_mean) {
  for (const auto& sizes : {std::vector<size_t>{1000}, {1, 255, 300, 0, 444}, {257, 511, 1, 1, 230}}) {
    const auto values = taken(sizes, std::vector<bool>(table.chunks(), false));
    for (size_t i = 0; i < elements; ++i)
      ASSERT_EQ(values[i], mean(i) + (i % 3 == 0 ? 0.5F : 0.0F)) << i << " of tensors " << sizes.size();
  }
}

TEST(ElasticCall, chunks_of_a_newcomer_are_the_mean_whatever_it_did_meanwhile) {
  std::vector<bool> replaced(table.chunks(), false);
  replaced[1] = true;
  const auto values = taken({100, 500, 400}, replaced);
  for (size_t i = 0; i < elements; ++i)
    ASSERT_EQ(values[i], mean(i) + (i % 3 == 0 && i / table.chunk_elements() != 1 ? 0.5F : 0.0F)) << i;
}

}  // namespace
}  // namespace unisono::internal

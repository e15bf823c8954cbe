// Many operations at once that have no room to send.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "node/test_cluster.h"

namespace unisono {
namespace {

// Each blocked operation asks for what is lent to be given back, but not each of them again whenever one of them could go on: the
// frames would fill the ring that the payloads need.
TEST(EngineRoom, is_asked_for_about_once_by_each_operation_that_lacks_it) {
  constexpr size_t count = 400, elements = 100;
  TestCluster cluster(2);
  std::vector<std::vector<int32_t>> data[2];
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 2; ++r) {
    data[r].assign(count, std::vector<int32_t>(elements, static_cast<int32_t>(r) + 1));
    for (auto& tensor : data[r]) {
      const std::span<int32_t> values(tensor);
      done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), ConstTensor(std::span<const int32_t>(tensor)), Tensor(values), {})));
    }
  }
  cluster.finish(done);
  for (const auto& operation : done) {
    ASSERT_TRUE(operation->done);
    EXPECT_TRUE(operation->status.ok()) << operation->status.to_string();
  }
  for (const auto& tensor : data[0]) EXPECT_EQ(tensor, std::vector<int32_t>(elements, 3));
  const auto frames = cluster.hub().at(0).counters().sent_frames;
  EXPECT_GT(frames, count) << "they had room: this tests nothing";
  EXPECT_LE(frames, 3 * count);
  EXPECT_EQ(cluster.engine(0).held_bytes() + cluster.engine(1).held_bytes(), 0u);
}

}  // namespace
}  // namespace unisono

// Many concurrent operations that lack send credit.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/test_cluster.h"

namespace unisono {
namespace {

// An operation without credit asks the peer to copy out its zero-copy views. It must not repeat that each time another
// operation proceeds: the requests would fill the ring, which payloads need.
TEST(EngineCredit, each_operation_without_credit_requests_it_about_once) {
  constexpr size_t count = 400, elements = 100;
  TestCluster cluster(2);
  std::vector<std::vector<int32_t>> data[2];
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank r = 0; r < 2; ++r) {
    data[r].assign(count, std::vector<int32_t>(elements, static_cast<int32_t>(r) + 1));
    for (auto& tensor : data[r]) {
      const std::span<int32_t> values(tensor);
      done.push_back(cluster.submit(
          r, all_reduce_call(cluster.caller(r), ConstTensor(std::span<const int32_t>(tensor)), Tensor(values), {})));
    }
  }
  cluster.finish(done);
  for (const auto& operation : done) {
    ASSERT_TRUE(operation->done);
    EXPECT_TRUE(operation->status.ok()) << operation->status.to_string();
  }
  for (const auto& tensor : data[0]) EXPECT_EQ(tensor, std::vector<int32_t>(elements, 3));
  const auto frames = cluster.hub().at(0).counters().sent_frames;
  EXPECT_GT(frames, count) << "no operation lacked credit, so this tests nothing";
  EXPECT_LE(frames, 3 * count);
  EXPECT_EQ(cluster.engine(0).held_bytes() + cluster.engine(1).held_bytes(), 0u);
}

// Ranks 0 and 1 begin two sums and wait for rank 2. Returns the bytes that both then hold in their own buffers, without
// zero-copy views. Each id is a CallOptions::id, or 0 for call order.
size_t held_while_waiting(uint64_t first_id, uint64_t second_id) {
  constexpr size_t elements = 3000;
  TestCluster cluster(3, {}, {}, 3);
  std::vector<std::vector<int32_t>> data(6);
  std::vector<std::shared_ptr<Completion>> done;
  const auto begin = [&](Rank r, size_t which) {
    auto& tensor = data[2 * r + which];
    tensor.assign(elements, static_cast<int32_t>(r + 1));
    const auto request = all_reduce_call(cluster.caller(r), std::span<const int32_t>(tensor), std::span<int32_t>(tensor),
                                         {.schedule = ScheduleKind::two_step});
    done.push_back(cluster.submit(r, request, which == 0 ? first_id : second_id));
  };
  for (const Rank r : {0u, 1u}) {
    for (const size_t which : {0u, 1u}) begin(r, which);
  }
  cluster.settle();
  const size_t held = cluster.engine(0).held_bytes() + cluster.engine(1).held_bytes();
  for (const size_t which : {0u, 1u}) begin(2, which);
  cluster.finish(done);
  for (const auto& tensor : data) EXPECT_EQ(tensor, std::vector<int32_t>(elements, 6));
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(cluster.engine(r).held_bytes(), 0u);
  return held;
}

TEST(EngineCredit, operations_in_call_order_keep_waiting_messages_as_zero_copy_views) {
  EXPECT_EQ(held_while_waiting(0, 0), 0u);
  EXPECT_GE(held_while_waiting(7, 8), 2 * 1000 * sizeof(int32_t))
      << "others may have begun 8 first, and nothing more fits before it is through";
}

}  // namespace
}  // namespace unisono

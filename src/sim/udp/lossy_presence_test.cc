// A rank that lives but cannot send its results yet is waited for: it answers requests for them. It is not waited for longer
// than the call's deadline allows, and the error says for which rank it waited itself.
#include <gtest/gtest.h>

#include <optional>

#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

class LossyPresence : public testing::Test {
 protected:
  static constexpr size_t count = 10'000;
  const CallOptions lossy_mean_{.op = ReduceOp::avg, .delivery = Delivery::lossy};
  void SetUp() override { begin(); }
  void begin() {
    cut_ = false;
    cluster_.emplace(DatagramNetworkSettings{
        .ranks = 4, .loses = [this](Rank from, Rank to, uint32_t) { return cut_ && from == 3 && to == 2; }});
  }
  // After 25 calls the deadlines of phases are learned, so a rank counts as gone after some milliseconds.
  void learn() {
    for (uint64_t round = 0; round < 25; ++round) {
      auto values = random_values(4, count, round + 1);
      for (const auto& outcome : cluster_->all_reduce(values, lossy_mean_)) ASSERT_TRUE(outcome.ok());
    }
  }
  std::vector<std::shared_ptr<Completion>> submit(std::vector<std::vector<float>>& values, const CallOptions& options) {
    std::vector<std::shared_ptr<Completion>> completions;
    for (Rank rank = 0; rank < values.size(); ++rank) completions.push_back(cluster_->submit(rank, values[rank], options));
    return completions;
  }

  bool cut_ = false;  // rank 2 gets nothing from rank 3
  std::optional<LossyCluster> cluster_;
};

// Rank 2 lacks results of rank 3 in one call, and the others wait for it in the next one.
TEST_F(LossyPresence, a_rank_that_repairs_an_earlier_call_is_waited_for) {
  for (const Nanos interruption : {12 * millisecond, 15 * millisecond}) {
    begin();
    learn();
    auto first = random_values(4, count, 98), second = random_values(4, count, 99);
    auto completions = submit(first, lossy_mean_);
    for (const auto& completion : submit(second, lossy_mean_)) completions.push_back(completion);
    cluster_->pass(300 * microsecond);  // rank 2 hears of rank 3, but gets no results
    cut_ = true;
    cluster_->pass(interruption);
    cut_ = false;
    cluster_->finish(completions);
    for (size_t i = 0; i < completions.size(); ++i)
      EXPECT_TRUE(completions[i]->status.ok()) << i << ": " << completions[i]->status.to_string();
    for (Rank rank = 1; rank < 4; ++rank) {
      EXPECT_EQ(first[rank], first[0]) << rank;
      EXPECT_EQ(second[rank], second[0]) << rank;
    }
  }
}

TEST_F(LossyPresence, a_rank_that_never_gets_its_results_is_waited_for_until_the_deadline_and_says_for_whom_it_waits) {
  cut_ = true;
  auto options = lossy_mean_;
  options.timeout = Milliseconds(200);
  auto values = random_values(4, count, 7);
  const auto start = cluster_->now();
  const auto completions = submit(values, options);
  cluster_->finish(completions);
  EXPECT_GE(cluster_->now() - start, 200 * millisecond);
  EXPECT_LE(cluster_->now() - start, 201 * millisecond);
  for (Rank rank = 0; rank < 4; ++rank) {
    const auto text = completions[rank]->status.to_string();
    EXPECT_EQ(completions[rank]->status.code(), Code::late) << text;
    const std::string waits = " ms ago it answered that it waits for rank 3 (process 3)";
    const std::string own = "contributions incomplete: rank 3 (process 3)", others = "results incomplete: rank 2 (process 2)";
    EXPECT_NE(text.find(rank == 2 ? own : others), std::string::npos) << text;
    EXPECT_EQ(text.find(waits) != std::string::npos, rank < 2) << text;  // rank 2 gets no requests of rank 3
  }
}

TEST_F(LossyPresence, a_rank_that_is_sending_a_stream_says_so_until_all_is_sent) {
  const StreamRequest request{.stream = {.op = 0, .phase = 0}};
  const auto& counts = cluster_->network().counts();
  auto values = random_values(4, count, 7);
  const auto completions = submit(values, lossy_mean_);
  cluster_->pass(50 * microsecond);
  EXPECT_EQ(counts.sent, counts.data) << "contributions are sent for 250 us, and only then an end";
  cluster_->group(2).stream_requested(1, 0, request, cluster_->now());
  cluster_->pass(50 * microsecond);
  EXPECT_EQ(counts.sent, counts.data + 1);
  cluster_->finish(completions);
  cluster_->pass(second);
  const auto sent = counts.sent;
  cluster_->group(2).stream_requested(1, 0, request, cluster_->now());
  cluster_->pass(second);
  EXPECT_EQ(counts.sent, sent) << "the service repeats what was sent, so no answer is needed";
}

TEST_F(LossyPresence, the_error_says_that_a_rank_was_sending_its_results) {
  cut_ = true;
  auto options = lossy_mean_;
  options.timeout = Milliseconds(200);
  auto values = random_values(4, count, 7);
  const auto completions = submit(values, options);
  cluster_->pass(199'900 * microsecond);
  cluster_->group(0).stream_requested(
      1, 2, {.kind = StreamRequest::Kind::pending, .stream = {.op = 0, .phase = 1}, .waits_for = 2}, cluster_->now());
  cluster_->finish(completions);
  EXPECT_NE(completions[0]->status.message().find("no datagram received, but 0 ms ago it answered that it is sending them"),
            std::string::npos)
      << completions[0]->status.message();
}

// The call of rank 2 has ended without results, so it does not answer.
TEST_F(LossyPresence, a_rank_that_has_ended_the_call_is_not_waited_for) {
  learn();
  auto values = random_values(4, count, 9);
  std::vector<std::shared_ptr<Completion>> completions;
  for (const Rank rank : {0u, 1u, 3u}) completions.push_back(cluster_->submit(rank, values[rank], lossy_mean_));
  const auto ended = cluster_->submit(2, values[2], lossy_mean_);
  cluster_->group(2).fail_all({Code::unavailable, "over"}, cluster_->now());
  const auto start = cluster_->now();
  cluster_->finish(completions);
  EXPECT_EQ(ended->status.code(), Code::unavailable) << ended->status.to_string();
  for (const auto& completion : completions) {
    EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find("rank 2 (process 2)"), std::string::npos) << completion->status.message();
    EXPECT_EQ(completion->status.message().find("answered"), std::string::npos) << completion->status.message();
  }
  EXPECT_LE(cluster_->now() - start, 60 * millisecond);
}

TEST_F(LossyPresence, many_requests_get_one_answer) {
  auto values = random_values(4, count, 3);
  cut_ = true;
  auto completions = submit(values, lossy_mean_);
  cluster_->pass(20 * millisecond);
  const auto sent = cluster_->network().counts().sent;
  const StreamRequest request{.kind = StreamRequest::Kind::ranges, .stream = {.op = 0, .phase = 1}};
  for (int i = 0; i < 1000; ++i) cluster_->group(2).stream_requested(1, 0, request, cluster_->now());
  cluster_->pass(500 * microsecond);
  EXPECT_LE(cluster_->network().counts().sent, sent + 50);
  cut_ = false;
  cluster_->finish(completions);
  for (const auto& completion : completions) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
}

}  // namespace
}  // namespace unisono::sim

// Short broadcasts without the executor: the root sends and is done, the others look for what it sent; else as sums
// (fast_path_test.cc).
#include <numeric>

#include "engine/fast_path/fast_path_test_support.h"

namespace unisono {
namespace {

using Ints = std::vector<int32_t>;

class FastPathBroadcast : public FastPathCalls {
 protected:
  void make(uint32_t world, size_t count, Rank root) {
    make_cluster(world);
    data.assign(world, {});
    for (Rank r = 0; r < world; ++r) again(r, count, root);
  }
  // first: the root's first value; the others follow it.
  void again(Rank r, size_t count, Rank root, int32_t first = 100, ScheduleKind schedule = ScheduleKind::direct) {
    data[r].assign(count, -1);
    if (r == root) std::iota(data[r].begin(), data[r].end(), first);
    calls[r] = {
        .request = broadcast_call(cluster->caller(r), std::span<int32_t>(data[r]), root, {.schedule = schedule}).value(),
        .fast_path = {}};
  }
  void expect_received(Rank r, int32_t first = 100) {
    Ints expected(data[r].size());
    std::iota(expected.begin(), expected.end(), first);
    EXPECT_EQ(data[r], expected) << "rank " << r;
  }

  std::vector<Ints> data;  // by rank
};

TEST_F(FastPathBroadcast, gives_the_executors_values_and_the_executors_report) {
  for (const uint32_t world : {2u, 3u, 8u, 32u}) {
    for (const Rank root : {0u, world - 1}) {
      for (const size_t count : {1, 7, 1024, 1025, 65536}) {
        make(world, count, root);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) done.push_back(by_executor(r));
        cluster->finish(done);
        make(world, count, root);
        for (Rank r = 0; r < world; ++r) ASSERT_TRUE(begin(r)) << world << " ranks, " << count;
        for (Rank r = 0; r < world; ++r) {
          ASSERT_EQ(look(r), FastPath::Found::all);
          expect_received(r);
          expect_alike(report(r), done[r]->report);
        }
      }
    }
  }
}

TEST_F(FastPathBroadcast, the_root_waits_for_nobody_and_the_others_for_it_alone) {
  make(3, 100, 1);
  ASSERT_TRUE(begin(0));
  EXPECT_EQ(look(0), FastPath::Found::nothing_yet);
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(1), FastPath::Found::all);
  EXPECT_EQ(report(1).wait_us, 0);
  EXPECT_EQ(look(0), FastPath::Found::all);
  expect_received(0);
  ASSERT_TRUE(begin(2));
  EXPECT_EQ(look(2), FastPath::Found::all);
  expect_received(2);
}

// As far as there is room; then the executor waits for it.
TEST_F(FastPathBroadcast, a_root_that_is_ahead_is_heard_in_order) {
  make(2, 2000, 0);
  int32_t sent = 0;
  for (; sent < 3; ++sent) {
    again(0, 2000, 0, 10 * sent);
    ASSERT_TRUE(begin(0));
    ASSERT_EQ(look(0), FastPath::Found::all);
  }
  for (int32_t i = 0; i < sent; ++i) {
    again(1, 2000, 0);
    ASSERT_TRUE(begin(1));
    ASSERT_EQ(look(1), FastPath::Found::all);
    expect_received(1, 10 * i);
  }
}

TEST_F(FastPathBroadcast, roots_may_change) {
  make(3, 100, 0);
  for (int turn = 0; turn < 6; ++turn) {
    const Rank root = turn % 3;
    for (Rank r = 0; r < 3; ++r) {
      again(r, 100, root, turn);
      ASSERT_TRUE(begin(r));
    }
    for (Rank r = 0; r < 3; ++r) {
      ASSERT_EQ(look(r), FastPath::Found::all);
      expect_received(r, turn);
    }
  }
}

TEST_F(FastPathBroadcast, the_executor_takes_over_from_who_waits) {
  for (const bool root_by_executor : {false, true}) {
    make(3, 500, 2);
    ASSERT_TRUE(begin(0));
    EXPECT_EQ(look(0), FastPath::Found::nothing_yet);
    std::vector<std::shared_ptr<Completion>> done = {take_over(0)};
    EXPECT_FALSE(done[0]->done);
    if (root_by_executor) {
      done.push_back(by_executor(2));
    } else {
      ASSERT_TRUE(begin(2));
      ASSERT_EQ(look(2), FastPath::Found::all);
    }
    done.push_back(by_executor(1));
    cluster->finish(done);
    for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
    EXPECT_EQ(done[0]->report.received_messages, 1u);
    EXPECT_EQ(done[0]->report.sent_messages, 0u);
    for (const Rank r : {0u, 1u}) {
      expect_received(r);
      EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u);
    }
  }
}

TEST_F(FastPathBroadcast, a_call_that_differs_is_named_and_so_is_a_root_that_is_lost) {
  make(2, 100, 0);
  ASSERT_TRUE(begin(0));
  again(1, 101, 0);
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(1), FastPath::Found::something_else);
  const auto other = take_over(1);
  cluster->finish({other});
  EXPECT_EQ(other->status.code(), Code::invalid);
  EXPECT_NE(other->status.message().find("rank 0 calls broadcast"), std::string::npos) << other->status.to_string();

  make(3, 100, 2);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, 2);
}

TEST_F(FastPathBroadcast, is_only_for_what_is_short_and_goes_in_one_round) {
  make(2, (256 << 10) / 4 + 1, 0);
  EXPECT_FALSE(begin(0)) << "too long";
  make(2, 0, 0);
  EXPECT_FALSE(begin(0)) << "nothing to send";
  make(33, 10, 0);
  EXPECT_FALSE(begin(0)) << "too many";
  make(4, 10, 0);
  again(0, 10, 0, 0, ScheduleKind::tree);
  EXPECT_FALSE(begin(0)) << "another schedule";
}

TEST_F(FastPathBroadcast, is_written_down_as_the_executors_is) {
  const auto call = [&] { make(3, 100, 1); };
  const auto ours = written(true, call), theirs = written(false, call);
  for (Rank r = 0; r < 3; ++r) {
    expect_written_alike(ours[r], theirs[r]);
    EXPECT_EQ(ours[r].operations[0].pending, r == 1 ? -1 : 1) << "the root";
  }
}

}  // namespace
}  // namespace unisono

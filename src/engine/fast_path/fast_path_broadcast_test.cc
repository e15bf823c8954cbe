// Short broadcasts on the fast path. Each rank looks for the root's data, and for the confirmations of the other ranks. Tests
// that broadcasts share with sums are in fast_path_test.cc.
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
  // first: the root's first value; each further value is larger by 1.
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

  std::vector<Ints> data;  // indexed by rank
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
        expect_all_found();
        for (Rank r = 0; r < world; ++r) {
          expect_received(r);
          auto ours = report(r);
          if (world > 2) ours.last_rank = done[r]->report.last_rank;  // timing decides which frame is the last
          expect_equal_reports(ours, done[r]->report);
        }
      }
    }
  }
}

TEST_F(FastPathBroadcast, every_rank_waits_until_all_ranks_have_begun) {
  make(3, 100, 1);
  for (const Rank begins : {0u, 1u}) {
    ASSERT_TRUE(begin(begins));
    for (Rank r = 0; r <= begins; ++r) EXPECT_EQ(look(r), FastPath::Found::incomplete) << begins << " " << r;
  }
  ASSERT_TRUE(begin(2));
  for (Rank r = 0; r < 3; ++r) {
    EXPECT_EQ(look(r), FastPath::Found::all);
    expect_received(r);
  }
}

TEST_F(FastPathBroadcast, two_roots_are_unexpected_on_every_rank) {
  make(3, 100, 0);
  again(1, 100, 1);
  for (Rank r = 0; r < 3; ++r) ASSERT_TRUE(begin(r));
  for (Rank r = 0; r < 3; ++r) EXPECT_EQ(look(r), FastPath::Found::unexpected_frame);
}

TEST_F(FastPathBroadcast, roots_may_change) {
  make(3, 100, 0);
  for (int turn = 0; turn < 6; ++turn) {
    const Rank root = turn % 3;
    for (Rank r = 0; r < 3; ++r) {
      again(r, 100, root, turn);
      ASSERT_TRUE(begin(r));
    }
    expect_all_found();
    for (Rank r = 0; r < 3; ++r) expect_received(r, turn);
  }
}

TEST_F(FastPathBroadcast, the_executor_takes_over_on_a_waiting_rank) {
  for (const bool root_by_executor : {false, true}) {
    make(3, 500, 2);
    ASSERT_TRUE(begin(0));
    EXPECT_EQ(look(0), FastPath::Found::incomplete);
    std::vector<std::shared_ptr<Completion>> done = {take_over(0)};
    EXPECT_FALSE(done[0]->done);
    if (root_by_executor) {
      done.push_back(by_executor(2));
    } else {
      ASSERT_TRUE(begin(2));
      ASSERT_EQ(look(2), FastPath::Found::incomplete);
      done.push_back(take_over(2));
    }
    done.push_back(by_executor(1));
    cluster->finish(done);
    for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
    for (const auto& completion : done) {
      EXPECT_EQ(completion->report.received_messages, 2u);
      EXPECT_EQ(completion->report.sent_messages, 2u);
    }
    for (const Rank r : {0u, 1u}) {
      expect_received(r);
      EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u);
    }
  }
}

TEST_F(FastPathBroadcast, a_call_that_differs_and_a_lost_root_are_named) {
  make(2, 100, 0);
  ASSERT_TRUE(begin(0));
  again(1, 101, 0);
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(1), FastPath::Found::unexpected_frame);
  const auto other = take_over(1);
  cluster->finish({other});
  EXPECT_EQ(other->status.code(), Code::invalid);
  EXPECT_NE(other->status.message().find("rank 0 (process 0) calls broadcast"), std::string::npos) << other->status.to_string();

  make(3, 100, 2);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, 2);
}

TEST_F(FastPathBroadcast, serves_only_short_broadcasts_in_one_round) {
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

TEST_F(FastPathBroadcast, writes_the_same_record_as_the_executor) {
  const auto call = [&] { make(3, 100, 1); };
  const auto ours = records_after(true, call), theirs = records_after(false, call);
  for (Rank r = 0; r < 3; ++r) expect_equal_records(ours[r], theirs[r]);
}

}  // namespace
}  // namespace unisono

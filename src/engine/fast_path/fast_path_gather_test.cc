// Short all-gathers on the fast path. Blocks, frames and reports must equal the executor's. All other cases are the executor's.
#include <numeric>

#include "engine/fast_path/fast_path_test_support.h"

namespace unisono {
namespace {

using Ints = std::vector<int32_t>;

class FastPathGather : public FastPathCalls {
 protected:
  // in_place: every rank's block is already in `all`.
  void make(uint32_t world, size_t count, bool in_place = false,
            const CallOptions& options = {.schedule = ScheduleKind::direct}) {
    make_cluster(world);
    blocks.assign(world, {});
    gathered.assign(world, {});
    for (Rank r = 0; r < world; ++r) again(r, count, in_place, options);
  }
  void again(Rank r, size_t count, bool in_place = false, const CallOptions& options = {.schedule = ScheduleKind::direct}) {
    auto &block = blocks[r], &all = gathered[r];
    block.resize(count);
    std::iota(block.begin(), block.end(), static_cast<int32_t>(1000 * r));
    all.assign(count * blocks.size(), -1);
    if (in_place) std::copy(block.begin(), block.end(), all.begin() + static_cast<ptrdiff_t>(r * count));
    const std::span<const int32_t> given(in_place ? all : block);
    calls[r] = {.request = all_gather_call(cluster->caller(r), given, std::span<int32_t>(all), {}, in_place, options).value(),
                .fast_path = {}};
  }
  void expect_gathered(Rank r) {
    Ints expected;
    for (const auto& block : blocks) expected.insert(expected.end(), block.begin(), block.end());
    EXPECT_EQ(gathered[r], expected) << "rank " << r << " of " << calls.size();
  }

  std::vector<Ints> blocks, gathered;  // indexed by rank
};

TEST_F(FastPathGather, gives_the_executors_blocks_and_the_executors_report) {
  for (const bool in_place : {false, true}) {
    for (const uint32_t world : {2u, 3u, 8u, 32u}) {
      for (const size_t count : {1, 7, 1024, 1025, 2048}) {
        make(world, count, in_place);
        std::vector<std::shared_ptr<Completion>> done;
        for (Rank r = 0; r < world; ++r) done.push_back(by_executor(r));
        cluster->finish(done);
        expect_gathered(world - 1);
        const auto theirs = done[0]->report;
        make(world, count, in_place);
        for (Rank r = 0; r < world; ++r) ASSERT_TRUE(begin(r)) << world << " ranks, " << count;
        for (Rank r = 0; r < world; ++r) {
          ASSERT_EQ(look(r), FastPath::Found::all);
          expect_gathered(r);
        }
        expect_equal_reports(report(0), theirs);
      }
    }
  }
}

TEST_F(FastPathGather, is_done_when_the_last_block_has_arrived) {
  make(3, 100);
  ASSERT_TRUE(begin(0));
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  ASSERT_TRUE(begin(2));
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(0), FastPath::Found::all);
  EXPECT_EQ(calls[0].fast_path.last_rank, 1u);
  expect_gathered(0);
}

TEST_F(FastPathGather, the_executor_takes_over_sent_and_received_frames) {
  for (const bool some_there : {false, true}) {
    for (const Rank first : {0u, 1u, 2u}) {
      make(3, 500);
      const Rank second = (first + 1) % 3, third = (first + 2) % 3;
      std::vector<std::shared_ptr<Completion>> done;
      ASSERT_TRUE(begin(first));
      if (some_there) done.push_back(by_executor(third));
      EXPECT_EQ(look(first), FastPath::Found::incomplete);
      done.push_back(take_over(first));
      EXPECT_FALSE(done.back()->done);
      done.push_back(by_executor(second));
      if (!some_there) done.push_back(by_executor(third));
      cluster->finish(done);
      for (const auto& completion : done) {
        EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
        EXPECT_EQ(completion->report.sent_messages, 2u);
        EXPECT_EQ(completion->report.received_messages, 2u);
        EXPECT_EQ(completion->report.sent_payload, 4000u);
      }
      for (Rank r = 0; r < 3; ++r) {
        expect_gathered(r);
        EXPECT_EQ(cluster->engine(r).held_bytes() + cluster->engine(r).in_flight_bytes(), 0u);
      }
      EXPECT_EQ(cluster->engine(first).counters().frames_stale, 0u);
    }
  }
}

TEST_F(FastPathGather, a_block_of_another_rank_is_unexpected) {
  for (const bool right : {false, true}) {
    make(3, 100);
    ASSERT_TRUE(begin(0));
    auto header = calls[0].fast_path.header;
    header.sender = 1;
    header.chunk = right ? 1 : 2;
    cluster->hub().at(1).send(0, header, std::as_bytes(std::span(blocks[1])), 0);
    EXPECT_EQ(look(0), right ? FastPath::Found::incomplete : FastPath::Found::unexpected_frame);
  }
}

TEST_F(FastPathGather, a_rank_that_gathers_more_is_named_by_the_executor) {
  make(2, 100);
  ASSERT_TRUE(begin(0));
  again(1, 101);
  const auto other = by_executor(1);
  EXPECT_EQ(look(0), FastPath::Found::unexpected_frame);
  const auto done = take_over(0);
  cluster->finish({done, other});
  EXPECT_EQ(done->status.code(), Code::invalid);
  EXPECT_NE(done->status.message().find("rank 1"), std::string::npos) << done->status.to_string();
}

TEST_F(FastPathGather, a_death_is_found_by_the_executor) {
  make(3, 100);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, 2);
}

TEST_F(FastPathGather, a_plan_is_reused_only_for_equal_calls) {
  make(2, 20);
  for (int turn = 0; turn < 2; ++turn) {
    for (const bool in_place : {false, true}) {
      for (const size_t count : {20, 7}) {
        for (Rank r = 0; r < 2; ++r) {
          again(r, count, in_place);
          ASSERT_TRUE(begin(r));
        }
        for (Rank r = 0; r < 2; ++r) {
          ASSERT_EQ(look(r), FastPath::Found::all);
          expect_gathered(r);
        }
      }
    }
  }
}

TEST_F(FastPathGather, serves_only_short_even_blocks_in_one_round) {
  make(2, (128 << 10) / 4 + 1);
  EXPECT_FALSE(begin(0)) << "too long";
  make(33, 10);
  EXPECT_FALSE(begin(0)) << "too many";
  make(2, 0);
  EXPECT_FALSE(begin(0)) << "nothing to send";
  make(2, 10, false, {.schedule = ScheduleKind::ring});
  EXPECT_FALSE(begin(0)) << "another schedule";
  make(2, 10);
  ASSERT_TRUE(begin(0));
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(0), FastPath::Found::all);
  const std::vector<size_t> uneven = {10, 5};
  Ints all(15);
  calls[0].request = all_gather_call(cluster->caller(0), std::span<const int32_t>(blocks[0]), std::span<int32_t>(all), uneven,
                                     false, {.schedule = ScheduleKind::direct})
                         .value();
  EXPECT_FALSE(begin(0)) << "uneven, though what was found out would serve as many elements";
}

}  // namespace
}  // namespace unisono

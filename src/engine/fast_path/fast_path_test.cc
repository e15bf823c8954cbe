// Short sums on the fast path. The bits must equal the executor's. All other cases are the executor's.
#include "engine/fast_path/fast_path_test_support.h"

#include <cstring>
#include <functional>

#include "base/random.h"

namespace unisono {
namespace {

using Floats = std::vector<float>;

// Values whose sum depends on the order of additions.
Floats float_values(Rank rank, size_t count) {
  Random random(100 + rank);
  Floats values(count);
  for (auto& value : values)
    value =
        static_cast<float>(static_cast<double>(random.next() >> 11) * 0x1p-53 - 0.5) * (random.below(2) == 0 ? 1e-3f : 1e3f);
  return values;
}

class FastPathTest : public FastPathCalls {
 protected:
  void make(uint32_t world, size_t count) {
    make_cluster(world);
    data.clear();
    for (Rank r = 0; r < world; ++r) data.push_back(float_values(r, count));
    for (Rank r = 0; r < world; ++r) calls[r].request = request(r);
  }
  OperationRequest request(Rank r, const CallOptions& options = {.schedule = ScheduleKind::one_shot}) {
    return all_reduce_call(cluster->caller(r), std::span<const float>(data[r]), std::span<float>(data[r]), options).value();
  }

  std::vector<Floats> data;
};

TEST_F(FastPathTest, gives_the_executors_bits_and_the_executors_report) {
  for (const uint32_t world : {2u, 3u, 8u, 32u}) {
    for (const size_t count : {1, 7, 256, 1024, 1025, 65536}) {
      make(world, count);
      std::vector<std::shared_ptr<Completion>> done;
      for (Rank r = 0; r < world; ++r) done.push_back(by_executor(r));
      cluster->finish(done);
      const auto expected = data[0];
      const auto theirs = done[0]->report;
      make(world, count);
      for (Rank r = 0; r < world; ++r) ASSERT_TRUE(begin(r)) << world;
      for (Rank r = 0; r < world; ++r) {
        ASSERT_EQ(look(r), FastPath::Found::all);
        EXPECT_EQ(std::memcmp(data[r].data(), expected.data(), count * sizeof(float)), 0) << "rank " << r << " of " << world;
      }
      expect_equal_reports(report(0), theirs);
    }
  }
}

TEST_F(FastPathTest, a_barrier_waits_for_all_ranks_and_reports_as_the_executor_does) {
  for (const uint32_t world : {2u, 3u, 32u}) {
    make(world, 10);
    for (Rank r = 0; r < world; ++r)
      calls[r].request = barrier_call(cluster->caller(r), {.schedule = ScheduleKind::one_shot}).value();
    for (Rank r = 0; r + 1 < world; ++r) ASSERT_TRUE(begin(r)) << world;
    EXPECT_EQ(look(0), FastPath::Found::incomplete) << "rank " << world - 1 << " has not come";
    const auto last =
        cluster->submit(world - 1, barrier_call(cluster->caller(world - 1), {.schedule = ScheduleKind::one_shot}));
    for (Rank r = 0; r + 1 < world; ++r) EXPECT_EQ(look(r), FastPath::Found::all) << r;
    cluster->finish({last});
    const auto ours = cluster->engine(0).report(calls[0].fast_path, cluster->now()).value(), theirs = last->report;
    EXPECT_EQ(ours.operation, "barrier");
    EXPECT_EQ(std::tuple(ours.schedule, ours.number, ours.contributors, ours.sent_bytes, ours.received_bytes,
                         ours.sent_messages, ours.received_messages),
              std::tuple(theirs.schedule, theirs.number, theirs.contributors, theirs.sent_bytes, theirs.received_bytes,
                         theirs.sent_messages, theirs.received_messages));
    EXPECT_EQ(std::tuple(ours.sent_payload, ours.sent_elements), std::tuple(theirs.sent_payload, theirs.sent_elements));
    EXPECT_EQ(data[0], float_values(0, 10)) << "a barrier touches no tensor";
  }
}

TEST_F(FastPathTest, the_executor_takes_over_a_barrier) {
  make(3, 10);
  for (Rank r = 0; r < 3; ++r) calls[r].request = barrier_call(cluster->caller(r), {}).value();
  ASSERT_TRUE(begin(0));
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  std::vector<std::shared_ptr<Completion>> done = {take_over(0)};
  cluster->settle();
  EXPECT_FALSE(done[0]->done);
  for (Rank r = 1; r < 3; ++r) done.push_back(cluster->submit(r, barrier_call(cluster->caller(r), {})));
  cluster->finish(done);
  for (const auto& completion : done) EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
  EXPECT_EQ(done[0]->report.sent_messages, 2u);
}

TEST_F(FastPathTest, averages_are_divided_by_the_number_of_ranks) {
  make(3, 10);
  for (Rank r = 0; r < 3; ++r) {
    data[r] = Floats(10, static_cast<float>(r));
    calls[r].request = request(r, {.op = ReduceOp::avg, .schedule = ScheduleKind::one_shot});
    ASSERT_TRUE(begin(r));
  }
  EXPECT_EQ(look(1), FastPath::Found::all);
  EXPECT_EQ(data[1], Floats(10, 1.0f));
}

TEST_F(FastPathTest, a_plan_is_reused_only_for_equal_calls) {
  make(2, 20);
  const auto both = [&](size_t count, const CallOptions& options) {
    for (Rank r = 0; r < 2; ++r) {
      data[r] = Floats(count, static_cast<float>(r + 1));
      calls[r].request = request(r, options);
      EXPECT_TRUE(begin(r));
    }
    EXPECT_EQ(look(0), FastPath::Found::all);
    EXPECT_EQ(look(1), FastPath::Found::all);
    EXPECT_EQ(data[0], data[1]);
    return data[0];
  };
  constexpr auto one_shot = ScheduleKind::one_shot;
  for (int again = 0; again < 2; ++again) {
    EXPECT_EQ(both(20, {.schedule = one_shot}), Floats(20, 3.0f));
    EXPECT_EQ(both(20, {.op = ReduceOp::max, .schedule = one_shot}), Floats(20, 2.0f));
    EXPECT_EQ(both(7, {.op = ReduceOp::avg, .schedule = one_shot}), Floats(7, 1.5f));
    EXPECT_EQ(both(7, {.op = ReduceOp::avg, .order = Order::in_rank_order, .schedule = one_shot, .slice_bytes = 4096}),
              Floats(7, 1.5f));
  }
  EXPECT_EQ(both(7, {.schedule = one_shot}), Floats(7, 3.0f));
  calls[0].request = request(0, {.op = ReduceOp::max, .schedule = one_shot});
  ASSERT_TRUE(begin(0));
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(1), FastPath::Found::unexpected_frame) << "rank 0 asks for the maximum";
}

TEST_F(FastPathTest, nothing_is_reduced_before_all_frames_have_arrived) {
  make(3, 100);
  ASSERT_TRUE(begin(0));
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  ASSERT_TRUE(begin(2));
  EXPECT_EQ(look(0), FastPath::Found::incomplete);
  EXPECT_EQ(data[0], float_values(0, 100));
  ASSERT_TRUE(begin(1));
  EXPECT_EQ(look(0), FastPath::Found::all);
  EXPECT_EQ(calls[0].fast_path.last_rank, 1u);
}

TEST_F(FastPathTest, the_executor_takes_over_sent_and_received_frames) {
  for (const bool some_there : {false, true}) {
    make(3, 500);
    std::vector<std::shared_ptr<Completion>> done;
    ASSERT_TRUE(begin(0));
    if (some_there) done.push_back(by_executor(2));
    EXPECT_EQ(look(0), FastPath::Found::incomplete);
    done.push_back(take_over(0));
    EXPECT_FALSE(done.back()->done);
    done.push_back(by_executor(1));
    if (!some_there) done.push_back(by_executor(2));
    cluster->finish(done);
    for (const auto& completion : done) {
      EXPECT_TRUE(completion->status.ok()) << completion->status.to_string();
      EXPECT_EQ(completion->report.sent_messages, 2u);
      EXPECT_EQ(completion->report.received_messages, 2u);
    }
    EXPECT_EQ(data[0], data[1]);
    EXPECT_EQ(data[0], data[2]);
    for (Rank r = 0; r < 3; ++r) EXPECT_EQ(cluster->engine(r).held_bytes(), 0u);
    EXPECT_EQ(cluster->engine(0).counters().frames_stale, 0u);
  }
}

TEST_F(FastPathTest, a_call_that_differs_is_unexpected_and_the_executor_names_it) {
  make(2, 100);
  ASSERT_TRUE(begin(0));
  expect_difference_is_named(0, 1);
}

TEST_F(FastPathTest, a_frame_that_differs_in_any_field_is_unexpected) {
  const std::vector<std::function<void(FrameHeader&)>> changes = {
      [](FrameHeader& h) { h.sender = 0; },  [](FrameHeader& h) { h.kind = FrameKind::failed; },
      [](FrameHeader& h) { h.codec = 1; },   [](FrameHeader& h) { ++h.epoch; },
      [](FrameHeader& h) { ++h.group; },     [](FrameHeader& h) { ++h.operation; },
      [](FrameHeader& h) { ++h.round; },     [](FrameHeader& h) { ++h.chunk; },
      [](FrameHeader& h) { ++h.slice; },     [](FrameHeader& h) { ++h.amount; },
      [](FrameHeader& h) { ++h.descriptor; }};
  for (size_t i = 0; i <= changes.size(); ++i) {
    make(2, 100);
    ASSERT_TRUE(begin(0));
    auto header = calls[0].fast_path.header;
    header.sender = 1;
    if (i < changes.size()) changes[i](header);
    cluster->hub().at(1).send(0, header, std::as_bytes(std::span(data[1])), 0);
    EXPECT_EQ(look(0), i < changes.size() ? FastPath::Found::unexpected_frame : FastPath::Found::all) << "change " << i;
  }
}

TEST_F(FastPathTest, a_death_is_found_by_the_executor) {
  make(3, 100);
  ASSERT_TRUE(begin(0));
  expect_death_is_named(0, 2);
}

TEST_F(FastPathTest, a_missing_rank_is_reported_late_at_the_deadline_of_the_call) {
  make(2, 100);
  calls[0].request.timeout = 50 * millisecond;
  ASSERT_TRUE(begin(0));
  cluster->advance(30 * millisecond);
  const auto done = take_over(0);
  cluster->finish({done});
  EXPECT_EQ(done->status.code(), Code::late);
  EXPECT_LE(done->report.total_us, 50'000 + inquiry_time / microsecond + 2'000);
}

TEST_F(FastPathTest, serves_only_short_sums_of_few_ranks_while_nothing_else_runs) {
  make(2, (256 << 10) / 4 + 1);
  EXPECT_FALSE(begin(0)) << "too long";
  make(33, 10);
  EXPECT_FALSE(begin(0)) << "too many";
  make(2, 0);
  EXPECT_FALSE(begin(0)) << "nothing to send";
  calls[0].request = request(0, {});
  EXPECT_FALSE(begin(0)) << "nothing to send, and like no sum before";
  make(2, 10);
  EXPECT_FALSE(begin(0, 5)) << "numbered by the caller";
  calls[0].request = request(0, {.schedule = ScheduleKind::ring});
  EXPECT_FALSE(begin(0)) << "another schedule";
  calls[0].request = request(0);
  cluster->advance(11 * millisecond);
  EXPECT_FALSE(begin(0)) << "the last poll was too long ago";
  cluster->settle();
  const auto running = cluster->submit(0, barrier_call(cluster->caller(0), {}));
  EXPECT_FALSE(begin(0)) << "another operation is in flight";
  const auto other = cluster->submit(1, barrier_call(cluster->caller(1), {}));
  cluster->finish({running, other});
  EXPECT_TRUE(begin(0));
  cluster->engine(1).stop_all_groups({Code::peer_lost, "enough"}, cluster->now());
  EXPECT_FALSE(begin(1)) << "the group has ended";
}

}  // namespace
}  // namespace unisono

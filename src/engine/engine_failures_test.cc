// Failures: calls that differ between ranks, frames that are truncated or sent twice, and ranks that are late, leave or die.
// Each must end with an error that names its cause.
#include "engine/engine.h"

#include <cstring>
#include <functional>

#include "base/random.h"
#include "engine/engine_test_support.h"

namespace unisono {
namespace {

using test::expect_nothing_held;
using test::expect_ok;
using test::in;
using test::Ints;
using test::out;
using test::sums;
using test::test_values;

struct WrongCall {
  const char* what;
  std::function<Result<OperationRequest>(const Caller&, Ints&)> right, wrong;
  const char* says;
};

TEST(EngineFailures, calls_that_differ_are_named_on_every_rank) {
  const auto reduce_of = [](size_t count, ReduceOp op) {
    return [=](const Caller& c, Ints& v) {
      return all_reduce_call(c, {v.data(), count, DType::i32}, {v.data(), count, DType::i32}, {.op = op});
    };
  };
  const auto agreeing_on = [](size_t count, uint64_t agreement) {
    return [=](const Caller& c, Ints& v) {
      return all_reduce_call(c, {v.data(), count, DType::i32}, {v.data(), count, DType::i32}, {.agreement = agreement});
    };
  };
  const std::vector<WrongCall> cases{
      {"agreement", agreeing_on(1000, 17), agreeing_on(1000, 18), "with agreement 18"},
      {"agreement in a short sum", agreeing_on(3, 1), agreeing_on(3, uint64_t{1} << 63), "with agreement 9223372036854775808"},
      {"agreement against none", agreeing_on(1000, 17), agreeing_on(1000, 0), "with no agreement"},
      {"size", reduce_of(1000, ReduceOp::sum), reduce_of(999, ReduceOp::sum), "999 elements"},
      {"operation", reduce_of(1000, ReduceOp::sum), reduce_of(1000, ReduceOp::max), "max"},
      {"type", reduce_of(1000, ReduceOp::sum),
       [](const Caller& c, Ints& v) {
         return all_reduce_call(c, {v.data(), 1000, DType::f32}, {v.data(), 1000, DType::f32}, {});
       },
       "f32"},
      {"collective", reduce_of(1000, ReduceOp::sum), [](const Caller& c, Ints&) { return barrier_call(c, {}); }, "barrier"},
      {"empty", reduce_of(0, ReduceOp::sum), reduce_of(5, ReduceOp::sum), "elements"}};
  for (const auto& wrong : cases) {
    TestCluster cluster(3);
    std::vector<Ints> data(3, Ints(1000));
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 3; ++r)
      done.push_back(
          cluster.submit(r, r == 1 ? wrong.wrong(cluster.caller(r), data[r]) : wrong.right(cluster.caller(r), data[r])));
    cluster.finish(done);
    for (Rank r = 0; r < 3; ++r) {
      ASSERT_TRUE(done[r]->done) << wrong.what;
      EXPECT_EQ(done[r]->status.code(), Code::invalid) << wrong.what << ": " << done[r]->status.to_string();
      EXPECT_NE(done[r]->status.message().find(wrong.says), std::string::npos)
          << wrong.what << ": " << done[r]->status.to_string();
    }
    expect_nothing_held(cluster);
  }
}

TEST(EngineFailures, a_rank_that_does_not_call_is_named_at_the_deadline) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(100'000));
  std::vector<std::shared_ptr<Completion>> done;
  for (const Rank r : {0u, 1u})
    done.push_back(
        cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {.timeout = Milliseconds(50)})));
  cluster.finish(done);
  for (const auto& completion : done) {
    EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find("rank 2 (process 2) has sent nothing"), std::string::npos)
        << completion->status.to_string();
    EXPECT_LE(completion->report.total_us, 50'000 + inquiry_time / microsecond + 2'000);
  }
  for (const Rank r : {0u, 1u}) EXPECT_EQ(cluster.engine(r).held_bytes() + cluster.engine(r).in_flight_bytes(), 0u);
}

TEST(EngineFailures, a_rank_that_dies_is_named_and_later_calls_are_refused) {
  TestCluster cluster(3);
  std::vector<Ints> data(3, Ints(100'000));
  std::vector<std::shared_ptr<Completion>> done;
  for (const Rank r : {0u, 1u})
    done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {})));
  cluster.settle();
  cluster.hub().kill(2);
  cluster.settle();
  for (const auto& completion : done) {
    ASSERT_TRUE(completion->done);
    EXPECT_EQ(completion->status.code(), Code::peer_lost);
    EXPECT_NE(completion->status.message().find("rank 2 was lost"), std::string::npos) << completion->status.to_string();
  }
  const auto refused = cluster.submit(0, barrier_call(cluster.caller(0), {}));
  EXPECT_TRUE(refused->done);
  EXPECT_EQ(refused->status.code(), Code::peer_lost);
  EXPECT_NE(refused->status.message().find("reform"), std::string::npos);
}

TEST(EngineFailures, an_operation_reports_what_it_has_done_so_far) {
  TestCluster cluster(2);
  std::vector<Ints> data(2, Ints(1000));
  const auto reduce = [&](Rank r) {
    return cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {}));
  };
  auto before = std::vector{reduce(0), reduce(1)};
  cluster.finish(before);
  EXPECT_EQ(cluster.engine(0).report(*before[0], cluster.now()).received_messages, 1u);
  cluster.engine(0).reuse(std::exchange(before[0], nullptr));
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 1, {}), 1);
  cluster.advance(3 * millisecond);
  const auto report = cluster.engine(0).report(*waits, cluster.now());
  EXPECT_EQ(report.operation, "recv");
  EXPECT_EQ(report.received_messages, 0u);
  EXPECT_EQ(report.total_us, 3000);
}

TEST(EngineFailures, a_truncated_list_of_awaited_ranks_is_ignored) {
  TestCluster cluster(3);
  Ints data(1000);
  const auto waits = cluster.submit(0, all_reduce_call(cluster.caller(0), in(data), out(data), {}));
  Bytes list = std::move(ByteWriter()
                             .write(static_cast<uint8_t>(Code::late))
                             .write_string("its deadline has passed")
                             .write(uint64_t{1})
                             .write(uint32_t{2})
                             .write(uint32_t{0}))
                   .take();
  const FrameHeader header{.kind = FrameKind::failed,
                           .epoch = 7,
                           .group = 1,
                           .operation = cluster.group(0).numbers.next() - 1,
                           .sender = 1,
                           .payload_bytes = static_cast<uint32_t>(list.size())};
  cluster.engine(0).received(1, header, {.data = list.data(), .bytes = list.size()});
  EXPECT_EQ(cluster.engine(0).counters().frames_refused, 1u);
  EXPECT_FALSE(waits->done);
}

TEST(EngineFailures, messages_that_a_rank_sent_before_it_left_are_used) {
  TestCluster cluster(3);
  const auto sent = test_values(1, 1000);
  std::vector<Ints> data(3, Ints(1000));
  std::vector<std::shared_ptr<Completion>> done;
  for (const Rank r : {0u, 2u})
    done.push_back(cluster.submit(1, message_call(cluster.caller(1), Collective::send, in(sent), {}, r, {}), 1));
  cluster.settle();
  cluster.hub().kill(1);
  cluster.settle();
  for (const Rank r : {0u, 2u})
    done.push_back(cluster.submit(r, message_call(cluster.caller(r), Collective::recv, {}, out(data[r]), 1, {}), 1));
  cluster.finish(done);
  expect_ok(done);
  for (const Rank r : {0u, 2u}) EXPECT_EQ(data[r], sent);
}

TEST(EngineFailures, duplicated_and_truncated_frames_are_refused) {
  for (const bool duplicate : {true, false}) {
    TestCluster cluster(2, {.seed = 4, .duplicate = duplicate ? 0.5 : 0, .cut = duplicate ? 0 : 0.5});
    std::vector<Ints> data{test_values(0, 200'000), test_values(1, 200'000)};
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank r = 0; r < 2; ++r)
      done.push_back(cluster.submit(r, all_reduce_call(cluster.caller(r), in(data[r]), out(data[r]), {.slice_bytes = 4096})));
    cluster.finish(done);
    for (Rank r = 0; r < 2; ++r) {
      ASSERT_TRUE(done[r]->done);
      if (done[r]->status.ok()) EXPECT_EQ(data[r], sums(2, 200'000));
      else EXPECT_EQ(done[r]->status.code(), Code::invalid) << done[r]->status.to_string();
    }
    EXPECT_FALSE(done[0]->status.ok() && done[1]->status.ok());
  }
}

TEST(EngineFailures, memory_for_early_frames_is_bounded_by_the_eager_limit) {
  TestCluster cluster(2);
  std::vector<Ints> data{test_values(0, 4'000'000), test_values(1, 4'000'000)};
  std::vector<std::shared_ptr<Completion>> done;
  done.push_back(cluster.submit(0, all_reduce_call(cluster.caller(0), in(data[0]), out(data[0]), {})));
  cluster.settle();
  EXPECT_LE(cluster.engine(1).held_bytes(), FlowLimits{}.eager_bytes + 8192);  // 8192 bytes allow for the credit grant
  done.push_back(cluster.submit(1, all_reduce_call(cluster.caller(1), in(data[1]), out(data[1]), {})));
  cluster.finish(done);
  expect_ok(done);
  EXPECT_EQ(data[0], sums(2, 4'000'000));
  expect_nothing_held(cluster);
}

}  // namespace
}  // namespace unisono

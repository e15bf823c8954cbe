// Another member re-forms the group. Tests which operations end here, when, and with which error.
#include "engine/engine.h"

#include "engine/test_cluster.h"

namespace unisono {
namespace {

// The status that group/lifecycle/joining passes to drain().
const Status reforming(Code::peer_lost, "another member re-forms the group");

TEST(EngineReforming, when_a_member_re_forms_operations_that_do_not_need_it_may_succeed) {
  TestCluster cluster(3);
  int32_t one = 0, two = 0, given = 5;
  const auto receive = [&](int32_t& value, Rank from) {
    return message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, from, {});
  };
  const auto needs_one = cluster.submit(0, receive(one, 1), 1), needs_two = cluster.submit(0, receive(two, 2), 1);
  cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
  cluster.submit(2, message_call(cluster.caller(2), Collective::send, {&given, 1, DType::i32}, {}, 0, {}), 1);
  cluster.settle();
  EXPECT_EQ(needs_one->status.code(), Code::peer_lost);
  EXPECT_TRUE(needs_two->done && needs_two->status.ok()) << needs_two->status.to_string();
  EXPECT_EQ(two, 5);
  EXPECT_EQ(cluster.submit(0, barrier_call(cluster.caller(0), {}))->status,
            Status(Code::peer_lost, "barrier: another member re-forms the group"));
}

TEST(EngineReforming, a_lost_peer_can_be_added_again) {
  const auto hub = std::move(*LoopbackHub::make({.count = 2}));
  TestCluster cluster(3);
  auto& engine = cluster.engine(0);
  engine.lost(1, {Code::peer_lost, "process 1: no answer"}, PeerFate::unknown);
  EXPECT_EQ(engine.peer_fate(1), PeerFate::unknown);
  engine.lost(2, {Code::peer_lost, "process 2: it is dead"}, PeerFate::ended);
  EXPECT_EQ(engine.peer_fate(2), PeerFate::ended);
  engine.add_peer(1, hub->at(0), "process 1");
  EXPECT_TRUE(engine.peer_status(1).ok());
  engine.lost(1, {Code::peer_lost, "process 1: no answer"}, PeerFate::ended);
  EXPECT_EQ(engine.peer_fate(1), PeerFate::ended) << "its second link is lost, too";
}

TEST(EngineReforming, when_a_member_re_forms_all_operations_end_by_the_drain_deadline) {
  TestCluster cluster(3);
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, {}), 1);
  cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
  EXPECT_EQ(cluster.engine(0).next_deadline(), cluster.now() + 100 * millisecond);
  cluster.advance(99 * millisecond);
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.advance(millisecond);
  cluster.settle();
  EXPECT_TRUE(waits->done);
  EXPECT_EQ(waits->status.code(), Code::peer_lost);
}

TEST(EngineReforming, a_group_that_is_made_while_draining_has_the_same_deadline) {
  TestCluster cluster(3);
  cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
  auto& made = cluster.make_group(0, 2, {0, 2});
  const auto waits = cluster.submit(0, made, barrier_call({.self = 0, .world = 2, .timeout = second}, {}));
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.advance(100 * millisecond);
  cluster.settle();
  EXPECT_EQ(waits->status, reforming);
}

// A barrier. Rank 0 has the messages of both others, and is done. Rank 1 has none of rank 2, for which it waits until the
// timeout.
struct FailedElsewhere : ::testing::Test {
  void SetUp() override {
    for (const Rank rank : {0u, 1u})
      begun.push_back(cluster.submit(rank, barrier_call(cluster.caller(rank), {.timeout = std::chrono::milliseconds(100)})));
    deliver_barrier(0, 2);
    ASSERT_TRUE(begun[0]->done && begun[0]->status.ok()) << begun[0]->status.to_string();
  }
  // Delivers the message by which rank `from` takes part in a barrier to rank 0.
  void deliver_barrier(uint64_t operation, Rank from) {
    auto& group = cluster.group(0);
    const auto request = *barrier_call(cluster.caller(0), {});
    const auto chosen = *group.plans.choose(request, group.plan_context(cluster.engine(0).topology()));
    const auto call = describe(request, chosen.plan->kind, chosen.slice_bytes, group.world());
    const FrameHeader header{.kind = FrameKind::data,
                             .epoch = 7,
                             .group = 1,
                             .operation = operation,
                             .sender = frame_sender(from),
                             .amount = call.amount,
                             .descriptor = call.bits};
    cluster.hub().at(from).send(0, header, {}, 0);
    cluster.settle();
  }
  // A barrier that ends on rank 0, and on no other rank.
  void barrier_ends_here(uint64_t operation) {
    const auto done = barrier();
    for (const Rank from : {1u, 2u}) deliver_barrier(operation, from);
    ASSERT_TRUE(done->done && done->status.ok()) << done->status.to_string();
  }
  std::shared_ptr<Completion> barrier() { return cluster.submit(0, barrier_call(cluster.caller(0), {})); }
  void fail_barrier() {
    cluster.finish(begun);
    ASSERT_EQ(begun[1]->status.code(), Code::late) << begun[1]->status.to_string();
  }
  Status drained(const std::shared_ptr<Completion>& running) {
    cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
    cluster.settle();
    EXPECT_TRUE(running->done);
    return running->status;
  }
  // Delivers a frame of `from` to rank 0. It reports that an operation in call order ended with late on `from`.
  void deliver_failure(uint64_t operation, Rank from, const std::string& words) {
    const auto payload = std::move(ByteWriter().write(static_cast<uint8_t>(Code::late)).write_string(words)).take();
    const FrameHeader header{.kind = FrameKind::failed,
                             .epoch = 7,
                             .group = 1,
                             .operation = operation,
                             .sender = frame_sender(from),
                             .payload_bytes = static_cast<uint32_t>(payload.size())};
    cluster.hub().at(from).send(0, header, payload, 0);
    cluster.settle();
  }
  Status with_reason(const std::string& call) const {
    return {Code::peer_lost, call + "rank 1 aborted the operation: " + begun[1]->status.message() + "; " + reforming.message()};
  }

  TestCluster cluster{3};
  std::vector<std::shared_ptr<Completion>> begun;
};

TEST_F(FailedElsewhere, a_failure_elsewhere_of_an_operation_that_succeeded_here_is_the_reason) {
  const auto running = barrier();
  fail_barrier();
  EXPECT_EQ(drained(running), with_reason(""));
  EXPECT_NE(running->status.message().find("rank 2"), std::string::npos) << running->status.to_string();
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(FailedElsewhere, the_failure_elsewhere_is_the_reason_for_later_calls_too) {
  fail_barrier();
  cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(FailedElsewhere, the_failure_elsewhere_is_not_the_reason_if_a_later_operation_has_ended_here) {
  fail_barrier();
  barrier_ends_here(1);
  EXPECT_EQ(drained(barrier()), reforming);
}

TEST_F(FailedElsewhere, the_failure_elsewhere_is_the_reason_for_its_own_group_only) {
  auto& other = cluster.make_group(0, 2, {1, 0});
  const auto running = barrier(),
             elsewhere = cluster.submit(0, other, barrier_call({.self = 1, .world = 2, .timeout = second}, {}));
  fail_barrier();
  EXPECT_EQ(drained(running), with_reason(""));
  EXPECT_EQ(elsewhere->status, reforming);
  EXPECT_EQ(cluster.submit(0, other, barrier_call({.self = 1, .world = 2, .timeout = second}, {}))->status,
            Status(Code::peer_lost, "barrier: " + reforming.message()));
}

TEST_F(FailedElsewhere, the_failure_elsewhere_stays_the_reason_when_further_members_re_form) {
  const auto running = barrier();
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, {}), 1);
  fail_barrier();
  EXPECT_EQ(drained(running), with_reason(""));
  cluster.engine(0).drain(2, reforming, cluster.now() + 100 * millisecond, cluster.now());
  cluster.settle();
  EXPECT_EQ(waits->status, with_reason(""));
  EXPECT_EQ(barrier()->status, with_reason("barrier: "));
}

TEST_F(FailedElsewhere, the_failure_elsewhere_is_the_reason_for_operations_that_end_at_the_drain_deadline) {
  int32_t value = 0;
  const auto waits =
      cluster.submit(0, message_call(cluster.caller(0), Collective::recv, {}, {&value, 1, DType::i32}, 2, {}), 1);
  fail_barrier();
  cluster.engine(0).drain(1, reforming, cluster.now() + 100 * millisecond, cluster.now());
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.advance(100 * millisecond);
  cluster.settle();
  EXPECT_EQ(waits->status, with_reason(""));
}

TEST_F(FailedElsewhere, the_first_report_about_the_latest_operation_is_the_reason) {
  fail_barrier();
  barrier_ends_here(1);
  deliver_failure(1, 2, "the latest");
  deliver_failure(1, 1, "the latest, later");
  deliver_failure(0, 2, "one before");
  EXPECT_EQ(drained(barrier()).message(), "rank 2 aborted the operation: the latest; " + reforming.message());
}

TEST_F(FailedElsewhere, an_operation_that_failed_here_too_is_not_the_reason) {
  fail_barrier();
  const auto failed = barrier();
  deliver_failure(1, 2, "enough");  // ends the barrier on rank 0 too
  ASSERT_TRUE(failed->done);
  deliver_failure(1, 1, "enough, too");
  EXPECT_EQ(drained(barrier()), reforming);
}

TEST_F(FailedElsewhere, an_inquiry_or_a_truncated_report_is_not_the_reason) {
  const auto words = std::move(ByteWriter().write(static_cast<uint8_t>(Code::late)).write_string("gone")).take();
  auto question = std::move(ByteWriter()
                                .write(static_cast<uint8_t>(Code::late))
                                .write_string("its deadline has passed")
                                .write(uint64_t{1})
                                .write(uint32_t{0}))
                      .take();
  const auto cut = ByteView(words).first(words.size() - 1);
  for (const auto bytes : {ByteView(question), cut}) {
    const FrameHeader header{.kind = FrameKind::failed,
                             .epoch = 7,
                             .group = 1,
                             .operation = 0,
                             .sender = 1,
                             .payload_bytes = static_cast<uint32_t>(bytes.size())};
    cluster.hub().at(1).send(0, header, bytes, 0);
    cluster.settle();
  }
  EXPECT_EQ(drained(barrier()), reforming);
}

}  // namespace
}  // namespace unisono

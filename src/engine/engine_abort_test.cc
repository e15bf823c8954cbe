// A member aborts its group, in virtual time. On other members, the operations that need it end, even those that it had not
// begun.
#include <gtest/gtest.h>

#include <list>
#include <span>
#include <string>
#include <vector>

#include "engine/operations/failure_protocol.h"
#include "engine/test_cluster.h"

namespace unisono {
namespace {

constexpr Rank aborted = 0;

class EngineAbort : public ::testing::Test {
 protected:
  std::shared_ptr<Completion> sum(Rank rank, GroupCore& group, uint32_t world, size_t count = 8) {
    auto& values = tensors_.emplace_back(count, 1.0F);
    return cluster.submit(rank, group,
                          all_reduce_call({group.self, world, 10 * second}, ConstTensor(std::span<const float>(values)),
                                          Tensor(std::span(values)), {}));
  }
  std::shared_ptr<Completion> sum(Rank rank, size_t count = 8) {
    return sum(rank, cluster.group(rank), cluster.world(), count);
  }
  // Starts a one-shot sum, in which each rank needs the data of all others.
  std::shared_ptr<Completion> exchange(Rank rank) {
    auto& values = tensors_.emplace_back(8, 1.0F);
    return cluster.submit(rank, all_reduce_call(cluster.caller(rank), ConstTensor(std::span<const float>(values)),
                                                Tensor(std::span(values)), {.schedule = ScheduleKind::one_shot}));
  }
  std::shared_ptr<Completion> message(Rank rank, Collective which, Rank other, uint32_t tag = 3) {
    auto& values = tensors_.emplace_back(4, static_cast<float>(rank));
    const bool sends = which == Collective::send;
    return cluster.submit(
        rank,
        message_call(cluster.caller(rank), which, sends ? ConstTensor(std::span<const float>(values)) : ConstTensor(),
                     sends ? Tensor() : Tensor(std::span(values)), other, {}),
        tag);
  }
  void abort(Rank rank) {
    cluster.engine(rank).abort_group(cluster.group(rank), {Code::unavailable, "aborted: enough"}, cluster.now());
    cluster.settle();
  }
  static void expect_aborted(const std::shared_ptr<Completion>& ended) {
    ASSERT_TRUE(ended->done);
    EXPECT_EQ(ended->status.code(), Code::unavailable) << ended->status.to_string();
    EXPECT_NE(ended->status.message().find("rank 0 aborted the operation: aborted: enough"), std::string::npos)
        << ended->status.to_string();
  }

  // Delivers a frame from rank 0, which has aborted, to `rank`.
  void deliver(Rank rank, FrameHeader header, ByteView payload) {
    header.payload_bytes = static_cast<uint32_t>(payload.size());
    cluster.engine(rank).received(0, header, {.data = payload.data(), .bytes = payload.size()});
    cluster.settle();
  }

  std::list<std::vector<float>> tensors_;
  TestCluster cluster{3};
  const Bytes text = failure_payload({Code::unavailable, "aborted: enough"});
  const FrameHeader right{.kind = FrameKind::failed, .epoch = 7, .group = 1, .operation = all_operations, .sender = 0};
};

TEST_F(EngineAbort, ends_operations_that_the_aborting_rank_has_not_begun) {
  std::vector<std::shared_ptr<Completion>> waiting{message(1, Collective::recv, aborted, 4)};
  for (const size_t count : {8, 1 << 20}) {
    for (const Rank rank : {1u, 2u}) waiting.push_back(sum(rank, count));
  }
  const auto sent = message(2, Collective::send, 1, 5);
  cluster.settle();
  for (const auto& each : waiting) EXPECT_FALSE(each->done) << each->status.to_string();
  abort(aborted);
  for (const auto& each : waiting) expect_aborted(each);
  const auto taken = message(1, Collective::recv, 2, 5);
  cluster.settle();
  EXPECT_TRUE(taken->done && taken->status.ok()) << "messages between others go on";
  EXPECT_TRUE(sent->done && sent->status.ok());
}

TEST_F(EngineAbort, ends_later_calls_at_once_and_holds_no_memory_for_them) {
  abort(aborted);
  for (int i = 0; i < 100; ++i) {
    for (const Rank rank : {1u, 2u}) {
      const auto ended = sum(rank, 1000);
      expect_aborted(ended);
    }
    cluster.settle();
  }
  for (Rank rank = 0; rank < cluster.world(); ++rank) EXPECT_EQ(cluster.engine(rank).in_flight_bytes(), 0u);
  for (Rank rank = 0; rank < cluster.world(); ++rank) EXPECT_EQ(cluster.engine(rank).active(), 0u);
  EXPECT_EQ(cluster.engine(aborted).held_bytes(), 0u);
}

TEST_F(EngineAbort, messages_sent_before_the_abort_are_still_received) {
  const auto sent = message(aborted, Collective::send, 1);
  cluster.settle();
  ASSERT_TRUE(sent->done);
  abort(aborted);
  const auto received = message(1, Collective::recv, aborted);
  cluster.settle();
  EXPECT_TRUE(received->done && received->status.ok()) << received->status.to_string();
  const auto next = message(1, Collective::recv, aborted);
  cluster.settle();
  expect_aborted(next);
}

TEST_F(EngineAbort, a_receive_from_any_rank_ends_only_when_all_other_ranks_have_aborted) {
  const auto waits = message(2, Collective::recv, any_source), ends = message(2, Collective::recv, any_source);
  abort(aborted);
  EXPECT_FALSE(waits->done);
  message(1, Collective::send, 2);
  cluster.settle();
  EXPECT_TRUE(waits->done && waits->status.ok()) << waits->status.to_string();
  EXPECT_EQ(waits->report.last_rank, 1);
  EXPECT_FALSE(ends->done);
  abort(1);
  expect_aborted(ends);
  EXPECT_NE(ends->status.message().find("rank 1 aborted the operation: aborted: enough"), std::string::npos)
      << ends->status.to_string();
}

TEST_F(EngineAbort, applies_to_a_group_that_is_made_later) {
  auto& first = cluster.make_group(aborted, 9, {0, 1});
  cluster.engine(aborted).abort_group(first, {Code::unavailable, "aborted: enough"}, cluster.now());
  cluster.settle();
  auto& second = cluster.make_group(1, 9, {0, 1});
  expect_aborted(sum(1, second, 2));
  EXPECT_EQ(cluster.engine(1).held_bytes(), 0u);
}

TEST_F(EngineAbort, other_groups_continue) {
  auto& half = cluster.make_group(aborted, 9, {0, 1});
  auto& other_half = cluster.make_group(1, 9, {0, 1});
  abort(aborted);
  const auto a = sum(aborted, half, 2), b = sum(1, other_half, 2);
  cluster.settle();
  EXPECT_TRUE(a->done && a->status.ok() && b->done && b->status.ok()) << a->status.to_string() << b->status.to_string();
}

TEST_F(EngineAbort, the_first_abort_message_ends_all_operations) {
  const std::vector<std::shared_ptr<Completion>> waiting{sum(0), sum(0, 1 << 20), sum(2), sum(2, 1 << 20)};
  cluster.settle();
  cluster.engine(aborted).abort_group(cluster.group(aborted), {Code::unavailable, "aborted: enough"}, cluster.now());
  const std::byte* payload = nullptr;
  auto first = right;
  first.payload_bytes = static_cast<uint32_t>(text.size());
  EXPECT_EQ(cluster.hub().at(2).next(aborted, first, payload), Next::expected);
  cluster.engine(2).received(aborted, first, {.data = text.data(), .bytes = text.size()});
  cluster.engine(2).lost(1, {Code::peer_lost, "process 1: it ended the link"}, PeerFate::ended);
  cluster.engine(2).poll(cluster.now());
  expect_aborted(waiting[2]);
  expect_aborted(waiting[3]);
}

TEST_F(EngineAbort, is_forwarded_so_that_all_ranks_know_why_the_rank_left) {
  const std::vector<std::shared_ptr<Completion>> waiting{message(1, Collective::recv, aborted, 4), exchange(2)};
  cluster.settle();
  deliver(1, right, text);
  expect_aborted(waiting[0]);
  EXPECT_FALSE(waiting[1]->done) << "what rank 0 sent to rank 2 before may be in flight";
  cluster.engine(2).lost(1, {Code::peer_lost, "process 1: it ended the link"}, PeerFate::ended);
  cluster.settle();
  expect_aborted(waiting[1]);
}

TEST_F(EngineAbort, is_the_reported_reason_when_another_rank_leaves_because_of_it) {
  for (int i = 0; i < 2; ++i) exchange(aborted);
  const auto running = exchange(2), waits = message(2, Collective::recv, 1);
  cluster.settle();
  deliver(2, right, text);
  EXPECT_FALSE(running->done) << running->status.to_string();
  cluster.engine(2).lost(1, {Code::peer_lost, "process 1: it ended the link"}, PeerFate::ended);
  const auto later = exchange(2);
  cluster.settle();
  expect_aborted(running);
  EXPECT_NE(running->status.message().find("; then rank 1 was lost: process 1: it ended the link"), std::string::npos)
      << running->status.to_string();
  expect_aborted(later);
  EXPECT_EQ(waits->status.code(), Code::peer_lost) << waits->status.to_string();
  EXPECT_EQ(waits->status.message().find("aborted the operation"), std::string::npos)
      << "a message from another has nothing to do with it: " << waits->status.to_string();
}

TEST_F(EngineAbort, is_sent_on_a_link_without_credit_before_the_link_closes) {
  const auto waits = exchange(2);
  cluster.settle();
  auto& link = cluster.hub().at(aborted);
  auto filler = right;
  filler.kind = FrameKind::data;
  filler.payload_bytes = 8;
  const Bytes values(8);
  for (filler.operation = 1000; filler.operation < 10'000 && link.credit(2) > 0; ++filler.operation)
    link.send(2, filler, values, 0);
  ASSERT_EQ(link.credit(2), 0u);
  cluster.engine(aborted).abort_group(cluster.group(aborted), {Code::unavailable, "aborted: enough"}, cluster.now());
  link.close(2);
  cluster.settle();
  expect_aborted(waits);
}

TEST_F(EngineAbort, an_invalid_abort_message_is_counted_and_ends_nothing) {
  const auto waits = sum(1, 1 << 20);
  auto of_its_own = right, nobody = right, data = right, credit = right;
  of_its_own.sender = 1;
  nobody.sender = 60'000;
  data.kind = FrameKind::data;
  credit.kind = FrameKind::credit;
  credit.amount = 5;
  for (const auto& header : {of_its_own, nobody, data, credit}) deliver(1, header, text);
  const auto other_code = failure_payload({Code::late, "aborted: enough"});
  for (const auto& payload : {ByteView(other_code), ByteView(text).first(3), ByteView()}) deliver(1, right, payload);
  EXPECT_FALSE(waits->done) << waits->status.to_string();
  EXPECT_EQ(cluster.engine(1).counters().frames_refused, 7u);
  deliver(1, right, text);
  expect_aborted(waits);
}

}  // namespace
}  // namespace unisono

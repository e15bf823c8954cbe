// Receives from any rank, in virtual time.
#include "engine/operations/any_source.h"

#include <gtest/gtest.h>

#include <list>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/test_cluster.h"

namespace unisono {
namespace {

constexpr uint32_t tag = 3;

class AnySource : public ::testing::Test {
 protected:
  std::shared_ptr<Completion> send(Rank from, Rank to, std::vector<int32_t> what, uint32_t with = tag) {
    const auto& values = sent_.emplace_back(std::move(what));
    return cluster.submit(
        from, message_call(cluster.caller(from), Collective::send, ConstTensor(std::span<const int32_t>(values)), {}, to, {}),
        with);
  }
  std::shared_ptr<Completion> receive(Rank at, std::vector<int32_t>& values, Rank from = any_source, uint32_t with = tag) {
    return cluster.submit(at, message_call(cluster.caller(at), Collective::recv, {}, Tensor(std::span(values)), from, {}),
                          with);
  }

  TestCluster cluster{4};

 private:
  std::list<std::vector<int32_t>> sent_;
};

std::vector<int32_t> numbers(size_t count, int32_t first) {
  std::vector<int32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

TEST_F(AnySource, a_receive_takes_a_later_message_and_names_its_sender) {
  for (const size_t count : {0, 1, 1000, 300'000}) {  // 300,000 elements exceed what a sender may send without credit
    const auto values = numbers(count, 7);
    std::vector<int32_t> got(count);
    const auto received = receive(0, got);
    cluster.settle();
    EXPECT_FALSE(received->done);
    cluster.finish({received, send(2, 0, values)});
    ASSERT_TRUE(received->status.ok()) << received->status.to_string();
    EXPECT_EQ(received->report.last_rank, 2);
    EXPECT_EQ(got, values);
  }
}

TEST_F(AnySource, messages_are_taken_in_order_of_arrival_and_only_once) {
  const auto from_3 = numbers(10, 300), from_1 = numbers(10, 100), more_from_3 = numbers(10, 330);
  std::vector<std::shared_ptr<Completion>> sent{send(3, 0, from_3)};
  cluster.settle();
  sent.push_back(send(1, 0, from_1));
  cluster.settle();
  sent.push_back(send(3, 0, more_from_3));
  cluster.settle();
  std::vector<std::vector<int32_t>> got(3, std::vector<int32_t>(10));
  for (size_t i = 0; i < 3; ++i) {
    const auto received = receive(0, got[i]);
    cluster.finish({received});
    EXPECT_EQ(received->report.last_rank, (std::vector<int>{3, 1, 3})[i]);
  }
  EXPECT_EQ(got, (std::vector{from_3, from_1, more_from_3}));
  cluster.finish(sent);
}

TEST_F(AnySource, receives_with_a_sender_and_without_share_messages_in_the_order_of_calls) {
  std::vector<int32_t> any(4), named(4), second(4);
  const auto wants_any = receive(0, any), wants_1 = receive(0, named, 1);
  cluster.settle();
  const auto a = send(1, 0, numbers(4, 10)), b = send(1, 0, numbers(4, 20));
  cluster.finish({wants_any, wants_1, a, b});
  // The receive from rank 1 got rank 1's first message, although the receive from any rank was called earlier.
  EXPECT_EQ(named, numbers(4, 10));
  EXPECT_EQ(any, numbers(4, 20));
}

TEST_F(AnySource, other_tags_and_other_groups_are_left_alone) {
  auto& pair_0 = cluster.make_group(0, 5, {0, 1}, {0, 0});
  auto& pair_1 = cluster.make_group(1, 5, {0, 1}, {0, 0});
  std::vector<int32_t> got(4), other(4);
  const auto received = receive(0, got);
  const auto caller = Caller{1, 2, 10 * second};
  const auto values = numbers(4, 1), wanted = numbers(4, 50);
  const auto in_pair = cluster.submit(
      1, pair_1, message_call(caller, Collective::send, ConstTensor(std::span<const int32_t>(values)), {}, 0, {}), tag);
  const auto other_tag = send(2, 0, values, tag + 1);
  cluster.settle();
  EXPECT_FALSE(received->done);
  const auto sent = send(3, 0, wanted);
  cluster.finish({received, sent});
  EXPECT_EQ(got, wanted);
  EXPECT_EQ(received->report.last_rank, 3);
  const auto pair_received = cluster.submit(
      0, pair_0, message_call({0, 2, 10 * second}, Collective::recv, {}, Tensor(std::span(other)), any_source, {}), tag);
  cluster.finish({pair_received, in_pair});
  EXPECT_EQ(pair_received->report.last_rank, 1);
  cluster.finish({receive(0, other, 2, tag + 1), other_tag});
}

TEST_F(AnySource, a_receive_without_a_message_ends_at_its_deadline) {
  std::vector<int32_t> got(4);
  const auto received = receive(0, got);
  cluster.finish({received});
  EXPECT_EQ(received->status.code(), Code::late);
  EXPECT_NE(received->status.message().find("recv from any rank, tag 3: no rank has sent anything in 10000 ms"),
            std::string::npos)
      << received->status.to_string();
}

TEST_F(AnySource, a_message_of_another_size_is_named) {
  std::vector<int32_t> got(4);
  const auto received = receive(0, got), sent = send(2, 0, numbers(5, 0));
  cluster.finish({received, sent});
  EXPECT_EQ(received->status.code(), Code::invalid) << received->status.to_string();
}

TEST_F(AnySource, the_message_of_a_lost_rank_is_taken_and_later_receives_wait_for_other_ranks) {
  std::vector<int32_t> first(4), second(4), third(4);
  const auto sent = send(1, 0, numbers(4, 9));
  cluster.settle();
  cluster.engine(0).lost(1, Status(Code::peer_lost, "process 1 is gone"), PeerFate::ended);
  const auto takes = receive(0, first), waits = receive(0, second);
  cluster.settle();
  EXPECT_TRUE(takes->status.ok()) << takes->status.to_string();
  EXPECT_EQ(first, numbers(4, 9));
  EXPECT_FALSE(waits->done);
  cluster.finish({waits, send(2, 0, numbers(4, 20))});
  EXPECT_EQ(waits->report.last_rank, 2);
  const auto late = receive(0, third);
  cluster.finish({late});
  EXPECT_EQ(late->status.code(), Code::late);
  EXPECT_NE(late->status.message().find("rank 1 was lost: process 1 is gone"), std::string::npos) << late->status.to_string();
}

TEST_F(AnySource, a_receive_ends_when_no_other_rank_is_left) {
  std::vector<int32_t> before(4), after(4);
  const auto waits = receive(0, before);
  for (const Rank rank : {1u, 2u}) cluster.engine(0).lost(rank, Status(Code::peer_lost, "it is gone"), PeerFate::ended);
  cluster.settle();
  EXPECT_FALSE(waits->done);
  cluster.engine(0).lost(3, Status(Code::peer_lost, "it is gone, too"), PeerFate::ended);
  cluster.settle();
  const auto refused = receive(0, after);
  for (const auto& ended : {waits, refused}) {
    ASSERT_TRUE(ended->done);
    EXPECT_EQ(ended->status.code(), Code::peer_lost);
    EXPECT_NE(ended->status.message().find("rank 3 was lost: it is gone, too"), std::string::npos) << ended->status.to_string();
  }
}

TEST_F(AnySource, an_aborted_group_ends_receives_on_all_ranks_and_refuses_new_ones) {
  std::vector<int32_t> got(4);
  std::vector<float> values(8, 1.0F), others(8, 1.0F);
  const auto received = receive(0, got);
  const auto sum = [&](Rank rank, std::vector<float>& tensor) {
    return cluster.submit(rank, all_reduce_call(cluster.caller(rank), ConstTensor(std::span<const float>(tensor)),
                                                Tensor(std::span(tensor)), {}));
  };
  const auto mine = sum(0, values), theirs = sum(1, others);
  cluster.settle();
  cluster.engine(0).abort_group(cluster.group(0), {Code::unavailable, "aborted: enough"}, cluster.now());
  for (const auto& ended : {received, mine, sum(0, values)}) {
    ASSERT_TRUE(ended->done);
    EXPECT_EQ(ended->status.code(), Code::unavailable);
    EXPECT_NE(ended->status.message().find("aborted: enough"), std::string::npos) << ended->status.to_string();
  }
  cluster.settle();
  ASSERT_TRUE(theirs->done) << "the other members need not wait for their deadline";
  EXPECT_NE(theirs->status.message().find("rank 0 aborted the operation"), std::string::npos) << theirs->status.to_string();
}

}  // namespace
}  // namespace unisono

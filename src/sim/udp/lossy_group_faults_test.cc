// Faults of datagrams that only a lossy operation can detect. There is one test for each reason to refuse a datagram. A refused
// datagram must not change the sum. This is check D4 of docs/design/methods/packet_loss.md.
#include <gtest/gtest.h>

#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

// Four ranks have finished operation 0, and rank 0 has begun operation 1. Each shard has one range of 256 elements; the last
// one has 232 elements. The injected datagrams have no hash of their call, unless a test sets one.
class LossyGroupFaults : public testing::Test {
 protected:
  static constexpr size_t count = 1000, own_elements = 256;
  void SetUp() override {
    auto values = inputs_;
    for (const auto& outcome : cluster_.all_reduce(values, options_)) ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    completions_.push_back(cluster_.submit(0, outputs_[0], options_));
  }
  DatagramFault deliver(const std::function<void(DatagramHeader&)>& change, size_t bytes = own_elements * sizeof(float),
                        Rank from = 1) {
    DatagramHeader header{
        .op = 1, .sender = static_cast<uint16_t>(from), .receiver = 0, .payload_bytes = static_cast<uint16_t>(bytes)};
    change(header);
    const std::vector<std::byte> payload(bytes, std::byte{0x42});
    return cluster_.group(0).datagram(1, from, header, payload, cluster_.now());
  }
  // Lets the other ranks join operation 1, and checks that no refused datagram is in any sum.
  void expect_exact_sum() {
    for (Rank rank = 1; rank < 4; ++rank) completions_.push_back(cluster_.submit(rank, outputs_[rank], options_));
    cluster_.finish(completions_);
    for (Rank rank = 0; rank < 4; ++rank) {
      ASSERT_TRUE(completions_[rank]->status.ok()) << completions_[rank]->status.to_string();
      EXPECT_EQ(outputs_[rank], std::vector<float>(count, 2.5f)) << rank;
    }
  }

  const CallOptions options_{.op = ReduceOp::avg, .delivery = Delivery::lossy};
  const std::vector<std::vector<float>> inputs_{std::vector<float>(count, 1), std::vector<float>(count, 2),
                                                std::vector<float>(count, 3), std::vector<float>(count, 4)};
  std::vector<std::vector<float>> outputs_ = inputs_;
  LossyCluster cluster_{{.ranks = 4}};
  std::vector<std::shared_ptr<Completion>> completions_;
};

TEST_F(LossyGroupFaults, datagrams_of_ended_or_replayed_operations_are_op_old) {
  EXPECT_EQ(deliver([](auto& header) { header.op = 0; }), DatagramFault::op_old);
  EXPECT_EQ(deliver([](auto& header) { header.op = 0xFFFFFFFF; }), DatagramFault::op_old);
  EXPECT_EQ(deliver([](auto& header) { header.op = 0, header.kind = DatagramKind::end; }, 0), DatagramFault::op_old);
  expect_exact_sum();
}

TEST_F(LossyGroupFaults, datagrams_beyond_the_next_operation_are_op_ahead) {
  EXPECT_EQ(deliver([](auto& header) { header.op = 3; }), DatagramFault::op_ahead);
  EXPECT_EQ(deliver([](auto& header) { header.op = 2; }), DatagramFault::none) << "kept until it begins";
  expect_exact_sum();
}

TEST_F(LossyGroupFaults, phases_slices_and_indices_outside_the_shard_are_place) {
  EXPECT_EQ(deliver([](auto& header) { header.phase = 2; }), DatagramFault::place);
  EXPECT_EQ(deliver([](auto& header) { header.slice = 1; }), DatagramFault::place);
  EXPECT_EQ(deliver([](auto& header) { header.packet_index = 1; }), DatagramFault::place);
  EXPECT_EQ(deliver([](auto& header) { header.packet_index = 0xFFFFFFFF; }), DatagramFault::place);
  EXPECT_EQ(deliver([](auto& header) { header.op = 2, header.phase = 2; }), DatagramFault::place)
      << "also in the next operation";
  expect_exact_sum();
}

TEST(LossyCallHash, data_of_another_call_is_place_and_its_sender_is_waited_for_until_it_is_lost) {
  LossyCluster cluster({.ranks = 3});
  std::vector<std::vector<float>> before(3, std::vector<float>(8, 1));  // data has a hash from the second kind of call on
  for (const auto& outcome : cluster.all_reduce(before, {.delivery = Delivery::lossy})) ASSERT_TRUE(outcome.ok());
  cluster.hold_announcements(true);
  std::vector<std::vector<float>> inputs, shards(3, std::vector<float>(2000));
  std::vector<std::shared_ptr<Completion>> done;
  CallOptions options{.op = ReduceOp::sum, .delivery = Delivery::lossy};
  options.lossy.deadline = std::chrono::milliseconds(5);
  options.lossy.loss_budget = 1;
  for (Rank rank = 0; rank < 3; ++rank) inputs.emplace_back(6000, static_cast<float>(rank + 1));
  for (Rank rank = 0; rank < 3; ++rank) {
    if (rank == 2) options.op = ReduceOp::avg;
    done.push_back(
        cluster.submit(rank, reduce_shards_call(cluster.caller(rank), ConstTensor(std::span<const float>(inputs[rank])),
                                                Tensor(std::span(shards[rank])), options)));
  }
  cluster.pass(second);
  for (const auto& each : done) EXPECT_FALSE(each->done);
  for (const Rank rank : {0u, 1u}) cluster.group(rank).peer_lost(2, {Code::peer_lost, "the process has ended"}, cluster.now());
  cluster.finish({done[0], done[1]});
  for (const Rank rank : {0u, 1u}) ASSERT_TRUE(done[rank]->status.ok()) << done[rank]->status.to_string();
  // One of two remote contributions arrived, and counts twice. Nothing of rank 2 is in a sum.
  EXPECT_EQ(shards[0], std::vector<float>(2000, 1 + 2 * 2));
  EXPECT_EQ(shards[1], std::vector<float>(2000, 2 + 2 * 1));
  EXPECT_FALSE(done[2]->done);
}

TEST_F(LossyGroupFaults, data_with_the_hash_of_another_call_is_place) {
  for (const uint16_t hash : {1, 0x4000, 0xFFFF}) {
    const auto fault = deliver([&](auto& header) { header.contributors = hash; });
    EXPECT_EQ(fault, DatagramFault::place) << hash;
  }
  const auto results = [](auto& header) { header.phase = 1, header.contributors = 3; };
  EXPECT_EQ(deliver(results), DatagramFault::none) << "in a result of a sum, the field has another meaning";
  EXPECT_EQ(deliver([](auto& header) { header.kind = DatagramKind::end; }, 0), DatagramFault::none);
  EXPECT_FALSE(completions_[0]->done);
  for (Rank rank = 1; rank < 4; ++rank) completions_.push_back(cluster_.submit(rank, outputs_[rank], options_));
  cluster_.finish(completions_);
  // The other ranks make the right call, so no announcement says what differs.
  EXPECT_EQ(completions_[0]->status.message(),
            "all_reduce 1: calls differ: rank 1 (process 1) makes another call than this rank, and its announcement has not "
            "arrived");
}

TEST_F(LossyGroupFaults, sizes_other_than_that_of_the_range_are_size) {
  const size_t right = own_elements * sizeof(float);
  for (const size_t bytes : {size_t{0}, size_t{4}, right - 1, right + 1, right + 72})
    EXPECT_EQ(deliver([](auto&) {}, bytes), DatagramFault::size) << bytes;
  // Results of rank 3 have 232 elements instead of 256.
  EXPECT_EQ(deliver([](auto& header) { header.phase = 1; }, right, 3), DatagramFault::size);
  expect_exact_sum();
}

TEST_F(LossyGroupFaults, ranges_received_before_are_duplicate) {
  std::vector<float> twos(own_elements, 2);
  const DatagramHeader header{.op = 1, .sender = 1, .receiver = 0, .payload_bytes = own_elements * sizeof(float)};
  EXPECT_EQ(cluster_.group(0).datagram(1, 1, header, std::as_bytes(std::span(twos)), cluster_.now()), DatagramFault::none);
  EXPECT_EQ(deliver([](auto&) {}), DatagramFault::duplicate);
  EXPECT_EQ(deliver([](auto& other) { other.flags = datagram_repaired; }), DatagramFault::duplicate);
  expect_exact_sum();
}

TEST_F(LossyGroupFaults, contributions_after_the_end_of_their_phase_are_late) {
  for (const Rank from : {1u, 2u, 3u}) {
    std::vector<float> own(own_elements, static_cast<float>(from + 1));
    const DatagramHeader header{
        .op = 1, .sender = static_cast<uint16_t>(from), .receiver = 0, .payload_bytes = own_elements * sizeof(float)};
    EXPECT_EQ(cluster_.group(0).datagram(1, from, header, std::as_bytes(std::span(own)), cluster_.now()), DatagramFault::none);
  }
  cluster_.group(0).step(cluster_.now());
  EXPECT_EQ(deliver([](auto&) {}), DatagramFault::late);
  expect_exact_sum();
  EXPECT_EQ(completions_[0]->report.delivery->contribute.streams[1].late, 2u) << "the injected datagram and the real one";
}

}  // namespace
}  // namespace unisono::sim

// Lossy operations with codecs: what travels in a datagram, what reports say, and ranks whose codecs differ.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

CallOptions with_codec(const char* text) {
  CallOptions options{.op = ReduceOp::avg, .delivery = Delivery::lossy};
  options.codec = *Codec::parse(text);
  return options;
}

// 54 groups of 32 elements take 54 * (3 * 4 + 2 * 2 + 2 * 2 + 2) = 1188 bytes: docs/design/methods/flash.md. With a header of
// eight bytes they would take 1196.
TEST(LossyCodecs, ranges_are_blocks_without_header_and_fill_datagrams) {
  constexpr uint32_t range_elements = 54 * 32, range_bytes = 1188, ranges = 10;
  LossyCluster cluster({.ranks = 2, .datagram_bytes = 1200 + datagram_header_bytes});
  auto values = random_values(2, size_t{2} * ranges * range_elements, 1);
  const auto outcomes = cluster.all_reduce(values, with_codec("int3:group=32,metadata=f16,spikes=on"));
  for (const auto& outcome : outcomes) {
    ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
    EXPECT_EQ(outcome->sent_messages, 2 * ranges) << "contributions and results";
    EXPECT_EQ(outcome->sent_payload, 2 * ranges * range_bytes);
    EXPECT_EQ(outcome->sent_elements, 2 * ranges * range_elements);
    EXPECT_EQ(outcome->bits_per_element(), 8.0 * range_bytes / range_elements);
  }
  EXPECT_EQ(values[0], values[1]);
}

TEST(LossyCodecs, reports_say_how_often_elements_are_encoded) {
  LossyCluster cluster({.ranks = 3});
  for (const auto& [codec, passes, text] :
       {std::tuple("int8", 2u, "encoded 2 times"), std::tuple("f16", 2u, "encoded 2 times"), std::tuple("plain", 0u, "")}) {
    SCOPED_TRACE(codec);
    auto values = random_values(3, 5000, 1);
    for (const auto& outcome : cluster.all_reduce(values, with_codec(codec))) {
      ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
      EXPECT_EQ(outcome->passes, passes);
      EXPECT_NE(outcome->to_string().find(text), std::string::npos) << outcome->to_string();
    }
  }
}

TEST(LossyCodecs, reports_count_what_was_too_large_in_each_operation_alone) {
  LossyCluster cluster({.ranks = 2});
  for (int round = 0; round < 2; ++round) {
    auto values = random_values(2, 5000, 1);
    values[0][4000] = 1e6f;  // too large for fp16 metadata
    values[1][100] = std::numeric_limits<float>::infinity();
    const auto outcomes = cluster.all_reduce(values, with_codec("int8:metadata=f16"));
    ASSERT_TRUE(outcomes[0].ok() && outcomes[1].ok());
    EXPECT_EQ(outcomes[0]->saturated, 1u);
    EXPECT_EQ(outcomes[1]->nonfinite_groups, 1u);
    auto small = random_values(2, 5000, 2);
    for (const auto& outcome : cluster.all_reduce(small, with_codec("int8:metadata=f16"))) {
      EXPECT_EQ(outcome->saturated, 0u);
      EXPECT_EQ(outcome->nonfinite_groups, 0u);
    }
  }
}

// Both codecs have messages of equal size, so sizes cannot tell them apart.
constexpr const char* one_codec = "int8:metadata=f16";
constexpr const char* other_codec = "int8:metadata=bf16";

// The options end every phase after 5 ms at most, and accept any loss.
CallOptions with_short_deadline(const char* codec) {
  auto options = with_codec(codec);
  options.lossy.deadline = std::chrono::milliseconds(5);
  options.lossy.loss_budget = 1;
  return options;
}

std::vector<std::shared_ptr<Completion>> calls_that_differ(LossyCluster& cluster, std::vector<std::vector<float>>& values,
                                                           CallOptions (*options)(const char*) = with_codec) {
  return {cluster.submit(0, values[0], options(one_codec)), cluster.submit(1, values[1], options(other_codec))};
}

// Data has a hash of its call if its group has made calls of another kind, too.
void call_in_another_way(LossyCluster& cluster) {
  auto values = random_values(2, 5000, 1);
  for (const auto& outcome : cluster.all_reduce(values, with_codec("int4"))) ASSERT_TRUE(outcome.ok());
}

void expect_both_codecs(const std::vector<std::shared_ptr<Completion>>& done, int number = 0) {
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(done[rank]->status.code(), Code::invalid);
    EXPECT_EQ(done[rank]->status.message(),
              concat("all_reduce ", number, ": calls differ: rank ", 1 - rank, " (process ", 1 - rank,
                     ") calls all_reduce(f32 avg, 5000 elements, two_step) with codec ", rank == 0 ? other_codec : one_codec,
                     ", rank ", rank, " calls all_reduce(f32 avg, 5000 elements, two_step) with codec ",
                     rank == 0 ? one_codec : other_codec, "; all ranks must make the same call"));
  }
}

TEST(LossyCodecs, ranks_whose_codecs_differ_get_invalid) {
  LossyCluster cluster({.ranks = 2});
  auto values = random_values(2, 5000, 1);
  const auto done = calls_that_differ(cluster, values);
  cluster.finish(done);
  expect_both_codecs(done);
}

TEST(LossyCodecs, calls_that_differ_have_no_result_and_wait_for_an_announcement_that_comes_late) {
  for (auto* options : {with_codec, with_short_deadline}) {
    LossyCluster cluster({.ranks = 2});
    auto values = random_values(2, 5000, 1);
    call_in_another_way(cluster);
    cluster.hold_announcements(true);
    const auto done = calls_that_differ(cluster, values, options);
    cluster.pass(second);
    EXPECT_FALSE(done[0]->done || done[1]->done);
    cluster.hold_announcements(false);
    const auto released = cluster.now();
    cluster.finish(done);
    EXPECT_LT(cluster.now() - released, millisecond);
    expect_both_codecs(done, 1);
    for (const auto& outcome : cluster.all_reduce(values, options(one_codec)))
      EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  }
}

TEST(LossyCodecs, calls_that_differ_end_at_their_deadline_if_no_announcement_comes) {
  LossyCluster cluster({.ranks = 2});
  auto values = random_values(2, 5000, 1);
  call_in_another_way(cluster);
  cluster.hold_announcements(true);
  const auto begun = cluster.now();
  const auto done = calls_that_differ(cluster, values, with_short_deadline);
  cluster.finish(done);
  EXPECT_EQ(cluster.now() - begun, 10 * second);
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(done[rank]->status.code(), Code::invalid);
    EXPECT_EQ(done[rank]->status.message(),
              concat("all_reduce 1: calls differ: rank ", 1 - rank, " (process ", 1 - rank,
                     ") makes another call than this rank, and its announcement has not arrived"));
  }
}

// No contribution arrives, and results have no hash of their call. So only the announcements can show that the calls differ.
TEST(LossyCodecs, if_the_announcement_comes_after_the_data_the_next_call_names_the_wrong_result) {
  bool loses = true;
  LossyCluster cluster({.ranks = 2, .loses = [&loses](Rank, Rank, uint32_t) { return loses; }});
  auto values = random_values(2, 5000, 1);
  cluster.hold_announcements(true);
  const auto done = calls_that_differ(cluster, values, with_short_deadline);
  cluster.pass(4 * millisecond);
  EXPECT_FALSE(done[0]->done || done[1]->done);
  // From here on the senders repeat nothing of phase 0, because nobody requests it.
  loses = false;
  cluster.finish(done);
  for (const auto& each : done) ASSERT_TRUE(each->status.ok()) << each->status.to_string();
  cluster.hold_announcements(false);
  cluster.pass(10 * millisecond);
  for (const bool differs : {true, false}) {
    const auto outcomes = cluster.all_reduce(values, with_codec(one_codec));
    for (Rank rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(outcomes[rank].ok(), !differs) << rank;
      if (!differs) continue;
      EXPECT_EQ(outcomes[rank].status().code(), Code::invalid);
      EXPECT_NE(outcomes[rank].status().message().find(concat(" with codec ", one_codec)), std::string::npos)
          << outcomes[rank].status().message();
      EXPECT_NE(outcomes[rank].status().message().find(concat(" with codec ", other_codec)), std::string::npos)
          << outcomes[rank].status().message();
      EXPECT_NE(outcomes[rank].status().message().find(
                    concat("the result of lossy operation 0 is wrong: calls differ: rank ", 1 - rank, " (process ")),
                std::string::npos)
          << outcomes[rank].status().message();
    }
  }
}

}  // namespace
}  // namespace unisono::sim

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "transports/udp/reliable/udp_loss_detector.h"

namespace unisono {
namespace {

std::vector<std::byte> payload_of(const std::vector<SequenceRange>& ranges) {
  ByteWriter writer;
  writer.write(FlowFeedback{.received = 7});
  for (const auto& range : ranges) writer.write(range);
  return std::move(writer).take();
}
AckFault fault_of(const std::vector<SequenceRange>& ranges, uint32_t highest_sent = 1000) {
  Acknowledgement ack;
  return read_ack(payload_of(ranges), highest_sent, ack);
}
std::vector<SequenceRange> ranges_of(const AckBuilder& builder) {
  const auto ranges = builder.newest_first();
  return {ranges.begin(), ranges.end()};
}

TEST(Acknowledgement, is_read_as_it_was_written) {
  AckBuilder builder({});
  for (const uint32_t seq : {3u, 4u, 9u, 5u, 7u}) EXPECT_TRUE(builder.received(seq, true, 0));
  std::byte out[ack_bytes_max];
  const FlowFeedback feedback{
      .received = 5, .highest_flow_seq = 9, .own_drops = 1, .echo_sent_at_us = 2, .echo_held_us = 3, .delay_us = -4};
  const auto bytes = builder.write(feedback, out, 0);
  EXPECT_EQ(bytes, 24u + 3 * 8);
  Acknowledgement ack;
  ASSERT_EQ(read_ack({out, bytes}, 9, ack), AckFault::none);
  EXPECT_EQ(ack.feedback, feedback);
  const std::vector<SequenceRange> expected{{9, 9}, {7, 7}, {3, 5}};
  EXPECT_EQ(std::vector(ack.newest_first().begin(), ack.newest_first().end()), expected);
}

TEST(Acknowledgement, may_have_no_ranges_and_may_wrap) {
  EXPECT_EQ(fault_of({}), AckFault::none);
  EXPECT_EQ(fault_of({{2, 5}, {UINT32_MAX - 5, 0}}), AckFault::none);
}
TEST(Acknowledgement, a_payload_shorter_than_feedback_is_refused) {
  Acknowledgement ack;
  EXPECT_EQ(read_ack(std::vector<std::byte>(23), 0, ack), AckFault::too_short);
  EXPECT_EQ(read_ack({}, 0, ack), AckFault::too_short);
}
TEST(Acknowledgement, a_partial_range_is_refused) {
  auto payload = payload_of({{1, 2}});
  payload.pop_back();
  Acknowledgement ack;
  EXPECT_EQ(read_ack(payload, 1000, ack), AckFault::length);
}
TEST(Acknowledgement, too_many_ranges_are_refused) {
  std::vector<SequenceRange> ranges;
  for (uint32_t i = 0; i < ack_ranges_max; ++i) ranges.push_back({900 - 3 * i, 900 - 3 * i});
  EXPECT_EQ(fault_of(ranges), AckFault::none);
  ranges.push_back({1, 1});
  EXPECT_EQ(fault_of(ranges), AckFault::too_many);
}
TEST(Acknowledgement, an_inverted_range_is_refused) { EXPECT_EQ(fault_of({{5, 4}}), AckFault::inverted); }
TEST(Acknowledgement, an_older_range_first_is_refused) { EXPECT_EQ(fault_of({{1, 2}, {8, 9}}), AckFault::order); }
TEST(Acknowledgement, ranges_that_touch_are_refused) { EXPECT_EQ(fault_of({{8, 9}, {5, 7}}), AckFault::order); }
TEST(Acknowledgement, ranges_that_overlap_are_refused) { EXPECT_EQ(fault_of({{8, 9}, {5, 8}}), AckFault::order); }
TEST(Acknowledgement, ranges_over_more_than_half_of_all_numbers_are_refused) {
  EXPECT_EQ(fault_of({{900, 900}, {900 - (1u << 30), 800}, {900u - (1u << 31) - 100, 700 - (1u << 30)}}), AckFault::order);
}
TEST(Acknowledgement, a_number_never_sent_is_refused) {
  EXPECT_EQ(fault_of({{5, 6}}, 6), AckFault::none);
  EXPECT_EQ(fault_of({{5, 7}}, 6), AckFault::never_sent);
}

TEST(AckBuilder, an_acknowledgement_waits_a_millisecond_or_for_a_number_of_datagrams) {
  AckBuilder builder({.every = 4});
  EXPECT_EQ(builder.due(), never);
  EXPECT_TRUE(builder.received(1, false, 0));
  EXPECT_EQ(builder.due(), never) << "does not ask for it";
  builder.received(2, true, 100);
  builder.received(3, true, 200);
  builder.received(4, true, 300);
  EXPECT_EQ(builder.due(), 100 + millisecond);
  builder.received(5, true, 400);
  EXPECT_EQ(builder.due(), 400);
  std::byte out[ack_bytes_max];
  builder.write({}, out, 500);
  EXPECT_EQ(builder.due(), never);
}

TEST(AckBuilder, a_gap_is_reported_at_once_but_not_too_often) {
  AckBuilder builder({});
  builder.received(1, true, 100);
  builder.received(3, true, 200);
  EXPECT_EQ(builder.due(), 200);
  std::byte out[ack_bytes_max];
  builder.write({}, out, 200);
  builder.received(5, true, 300);
  EXPECT_EQ(builder.due(), 200 + 250 * microsecond);
  builder.received(4, true, 400);
  EXPECT_EQ(ranges_of(builder), (std::vector<SequenceRange>{{3, 5}, {1, 1}}));
}

TEST(AckBuilder, make_due_is_immediate_and_a_duplicate_is_acknowledged_soon) {
  AckBuilder builder({});
  builder.received(1, true, 100);
  builder.make_due(150);
  EXPECT_EQ(builder.due(), 150);
  std::byte out[ack_bytes_max];
  builder.write({}, out, 150);
  EXPECT_FALSE(builder.received(1, true, second));
  EXPECT_EQ(builder.due(), second);
}

TEST(AckBuilder, refused_datagrams_are_reported_within_a_millisecond) {
  AckBuilder builder({});
  builder.refused(100);
  builder.refused(200);
  EXPECT_EQ(builder.due(), 100 + millisecond);
  EXPECT_TRUE(builder.newest_first().empty());
}

TEST(AckBuilder, the_newest_ranges_that_fit_are_written) {
  AckBuilder builder({});
  for (uint32_t i = 0; i < 300; ++i) builder.received(2 * i, true, 0);
  EXPECT_EQ(builder.newest_first().size(), ack_ranges_max);
  std::byte out[24 + 17];
  EXPECT_EQ(builder.write({}, out, 0), 24u + 16);
  Acknowledgement ack;
  ASSERT_EQ(read_ack({out, 40}, 598, ack), AckFault::none);
  EXPECT_EQ(ack.ranges[1], (SequenceRange{596, 596}));
}

// A lost datagram's number never arrives. Without a limit, the range before the gap would be reported for ever. So it is
// reported 32 times only.
TEST(AckBuilder, an_unchanged_range_is_reported_thirty_two_times) {
  AckBuilder builder({});
  std::byte out[ack_bytes_max];
  Nanos now = 0;
  const auto reported = [&] {
    Acknowledgement ack;
    EXPECT_EQ(read_ack({out, builder.write({}, out, now += millisecond)}, 1000, ack), AckFault::none);
    return std::vector(ack.newest_first().begin(), ack.newest_first().end());
  };
  using Ranges = std::vector<SequenceRange>;
  builder.received(1, true, 0);
  builder.received(3, true, 0);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(reported(), (Ranges{{3, 3}, {1, 1}})) << i;
  }
  EXPECT_EQ(reported(), (Ranges{{3, 3}})) << "the newest is always reported";
  builder.received(5, true, now);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(reported().front(), (SequenceRange{5, 5})) << i;
  EXPECT_EQ(reported(), (Ranges{{5, 5}}));
  // The missing datagram 2 arrives late after all.
  builder.received(2, true, now);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(reported(), (Ranges{{5, 5}, {1, 3}})) << i;
  EXPECT_EQ(reported(), (Ranges{{5, 5}}));
  EXPECT_EQ(ranges_of(builder), (Ranges{{5, 5}, {1, 3}})) << "it is not forgotten: a copy is known as one";
  EXPECT_FALSE(builder.received(1, true, now));
}

TEST(AckBuilder, ranges_too_far_behind_are_forgotten) {
  AckBuilder builder({});
  builder.received(5, true, 0);
  builder.received(7, true, 0);
  for (uint32_t i = 0; i < 9; ++i) builder.received(100 + i * (ack_reach / 4), true, 0);
  EXPECT_EQ(builder.newest_first().size(), 5u);
  EXPECT_FALSE(builder.received(6, true, 0));
  AckBuilder steady({});
  for (uint32_t i = 0; i < 2 * ack_reach; ++i) steady.received(i, true, 0);
  EXPECT_EQ(ranges_of(steady), (std::vector<SequenceRange>{{ack_reach - 1, 2 * ack_reach - 1}}));
}

TEST(AckBuilder, ranges_hold_exactly_the_arrived_numbers_across_the_wrap) {
  const uint64_t seed = 5;
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    AckBuilder builder({});
    std::set<uint32_t> seen;  // offsets from `base`
    const auto base = static_cast<uint32_t>(0u - random.below(100));
    for (int i = 0; i < 80; ++i) {
      const auto offset = static_cast<uint32_t>(random.below(120));
      EXPECT_EQ(builder.received(base + offset, true, 0), seen.insert(offset).second);
    }
    std::set<uint32_t> reported;
    for (const auto& range : builder.newest_first()) {
      for (uint32_t seq = range.first; seq != range.last + 1; ++seq) EXPECT_TRUE(reported.insert(seq - base).second);
    }
    EXPECT_EQ(reported, seen);
    std::byte out[ack_bytes_max];
    const auto bytes = builder.write({}, out, 0);
    Acknowledgement ack;
    EXPECT_EQ(read_ack({out, bytes}, base + 120, ack), AckFault::none);
  }
}

}  // namespace
}  // namespace unisono

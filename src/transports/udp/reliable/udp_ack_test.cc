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
TEST(Acknowledgement, shorter_than_feedback_is_refused) {
  Acknowledgement ack;
  EXPECT_EQ(read_ack(std::vector<std::byte>(23), 0, ack), AckFault::too_short);
  EXPECT_EQ(read_ack({}, 0, ack), AckFault::too_short);
}
TEST(Acknowledgement, with_part_of_a_range_is_refused) {
  auto payload = payload_of({{1, 2}});
  payload.pop_back();
  Acknowledgement ack;
  EXPECT_EQ(read_ack(payload, 1000, ack), AckFault::length);
}
TEST(Acknowledgement, with_too_many_ranges_is_refused) {
  std::vector<SequenceRange> ranges;
  for (uint32_t i = 0; i < ack_ranges_max; ++i) ranges.push_back({900 - 3 * i, 900 - 3 * i});
  EXPECT_EQ(fault_of(ranges), AckFault::none);
  ranges.push_back({1, 1});
  EXPECT_EQ(fault_of(ranges), AckFault::too_many);
}
TEST(Acknowledgement, with_an_inverted_range_is_refused) { EXPECT_EQ(fault_of({{5, 4}}), AckFault::inverted); }
TEST(Acknowledgement, with_the_older_range_first_is_refused) { EXPECT_EQ(fault_of({{1, 2}, {8, 9}}), AckFault::order); }
TEST(Acknowledgement, with_ranges_that_touch_is_refused) { EXPECT_EQ(fault_of({{8, 9}, {5, 7}}), AckFault::order); }
TEST(Acknowledgement, with_ranges_that_overlap_is_refused) { EXPECT_EQ(fault_of({{8, 9}, {5, 8}}), AckFault::order); }
TEST(Acknowledgement, all_around_the_circle_is_refused) {
  EXPECT_EQ(fault_of({{900, 900}, {900 - (1u << 30), 800}, {900u - (1u << 31) - 100, 700 - (1u << 30)}}), AckFault::order);
}
TEST(Acknowledgement, of_a_number_never_sent_is_refused) {
  EXPECT_EQ(fault_of({{5, 6}}, 6), AckFault::none);
  EXPECT_EQ(fault_of({{5, 7}}, 6), AckFault::never_sent);
}

TEST(AckBuilder, waits_a_millisecond_or_for_so_many_datagrams) {
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

TEST(AckBuilder, tells_a_gap_at_once_but_not_too_often) {
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

TEST(AckBuilder, answers_at_once_when_asked_and_soon_to_a_duplicate) {
  AckBuilder builder({});
  builder.received(1, true, 100);
  builder.ask(150);
  EXPECT_EQ(builder.due(), 150);
  std::byte out[ack_bytes_max];
  builder.write({}, out, 150);
  EXPECT_FALSE(builder.received(1, true, second));
  EXPECT_EQ(builder.due(), second);
}

TEST(AckBuilder, says_within_a_millisecond_how_far_refused_datagrams_came) {
  AckBuilder builder({});
  builder.refused(100);
  builder.refused(200);
  EXPECT_EQ(builder.due(), 100 + millisecond);
  EXPECT_TRUE(builder.newest_first().empty());
}

TEST(AckBuilder, writes_the_newest_of_what_it_has_credit_for) {
  AckBuilder builder({});
  for (uint32_t i = 0; i < 300; ++i) builder.received(2 * i, true, 0);
  EXPECT_EQ(builder.newest_first().size(), ack_ranges_max);
  std::byte out[24 + 17];
  EXPECT_EQ(builder.write({}, out, 0), 24u + 16);
  Acknowledgement ack;
  ASSERT_EQ(read_ack({out, 40}, 598, ack), AckFault::none);
  EXPECT_EQ(ack.ranges[1], (SequenceRange{596, 596}));
}

// A lost datagram's number never arrives, so the range before it would be reported for ever.
TEST(AckBuilder, tells_what_does_not_change_thirty_two_times) {
  AckBuilder builder({});
  std::byte out[ack_bytes_max];
  Nanos now = 0;
  const auto told = [&] {
    Acknowledgement ack;
    EXPECT_EQ(read_ack({out, builder.write({}, out, now += millisecond)}, 1000, ack), AckFault::none);
    return std::vector(ack.newest_first().begin(), ack.newest_first().end());
  };
  using Ranges = std::vector<SequenceRange>;
  builder.received(1, true, 0);
  builder.received(3, true, 0);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(told(), (Ranges{{3, 3}, {1, 1}})) << i;
  }
  EXPECT_EQ(told(), (Ranges{{3, 3}})) << "the newest is always told";
  builder.received(5, true, now);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(told().front(), (SequenceRange{5, 5})) << i;
  EXPECT_EQ(told(), (Ranges{{5, 5}}));
  // The missing datagram comes late after all.
  builder.received(2, true, now);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(told(), (Ranges{{5, 5}, {1, 3}})) << i;
  EXPECT_EQ(told(), (Ranges{{5, 5}}));
  EXPECT_EQ(ranges_of(builder), (Ranges{{5, 5}, {1, 3}})) << "it is not forgotten: a copy is known as one";
  EXPECT_FALSE(builder.received(1, true, now));
}

TEST(AckBuilder, forgets_what_is_too_far_behind_for_the_order_to_be_clear) {
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

TEST(AckBuilder, holds_exactly_what_has_arrived_in_any_order_across_the_wrap) {
  const uint64_t seed = 5;
  Random random(seed);
  for (int round = 0; round < 300; ++round) {
    AckBuilder builder({});
    std::set<uint32_t> seen;  // without the base
    const auto base = static_cast<uint32_t>(0u - random.below(100));
    for (int i = 0; i < 80; ++i) {
      const auto offset = static_cast<uint32_t>(random.below(120));
      EXPECT_EQ(builder.received(base + offset, true, 0), seen.insert(offset).second);
    }
    std::set<uint32_t> told;
    for (const auto& range : builder.newest_first()) {
      for (uint32_t seq = range.first; seq != range.last + 1; ++seq) EXPECT_TRUE(told.insert(seq - base).second);
    }
    EXPECT_EQ(told, seen);
    std::byte out[ack_bytes_max];
    const auto bytes = builder.write({}, out, 0);
    Acknowledgement ack;
    EXPECT_EQ(read_ack({out, bytes}, base + 120, ack), AckFault::none);
  }
}

}  // namespace
}  // namespace unisono

#include "transports/udp/reliable/udp_loss_detector.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace unisono {
namespace {

using Names = std::vector<FragmentName>;

Acknowledgement ack_of(std::initializer_list<SequenceRange> ranges) {
  Acknowledgement ack;
  for (const auto& range : ranges) ack.ranges[ack.count++] = range;
  return ack;
}

// A link with a round trip of 400 us. All fragments belong to frame 1. Fragment i is sent as datagram `base` + i.
struct Link {
  explicit Link(size_t datagrams = 256, uint32_t base_number = 0) : losses(datagrams), base(base_number) {
    rtt.sample(400 * microsecond);
  }
  void send(uint32_t index, Nanos now) { losses.sent(base + index, {1, index}, 1400, rtt, now); }
  void acknowledge(std::initializer_list<SequenceRange> indices, Nanos now) {
    auto ack = ack_of(indices);
    for (auto& range : ack.ranges) range = {base + range.first, base + range.last};
    ack.feedback.highest_flow_seq = ack.ranges[0].last;
    arrived.clear();
    lost.clear();
    losses.acknowledged(ack, rtt, now, arrived, lost);
  }
  void expire(Nanos now) {
    lost.clear();
    losses.expire(rtt, now, lost);
  }
  RttEstimator rtt;
  LossDetector losses;
  uint32_t base;
  Names arrived, lost;
};

Names names(std::initializer_list<uint32_t> indices) {
  Names result;
  for (const uint32_t index : indices) result.push_back({1, index});
  return result;
}

TEST(LossDetector, a_fragment_overtaken_by_three_is_lost) {
  for (const uint32_t base : {0u, UINT32_MAX - 3}) {
    Link link(256, base);
    for (uint32_t i = 0; i < 6; ++i) link.send(i, i);
    link.acknowledge({{3, 3}}, 1000);
    EXPECT_EQ(link.arrived, names({3}));
    EXPECT_EQ(link.lost, names({0})) << "1 and 2 may only have been overtaken";
    link.acknowledge({{4, 4}}, 1001);
    EXPECT_EQ(link.lost, names({1}));
    EXPECT_EQ(link.losses.outstanding(), 2u);
    EXPECT_EQ(link.losses.outstanding_bytes(), 2800u);
  }
}

TEST(LossDetector, a_fragment_older_than_nine_eighths_of_the_round_trip_is_lost) {
  Link link;
  link.rtt = {};
  link.rtt.sample(4 * millisecond);
  link.send(0, 0);
  link.send(1, 10);
  link.acknowledge({{1, 1}}, 4 * millisecond);
  EXPECT_TRUE(link.lost.empty());
  EXPECT_EQ(link.losses.due(), 4500 * microsecond);
  link.expire(4500 * microsecond - 1);
  EXPECT_TRUE(link.lost.empty());
  link.expire(4500 * microsecond);
  EXPECT_EQ(link.lost, names({0}));
  EXPECT_EQ(link.losses.due(), never);
}

TEST(LossDetector, the_loss_delay_is_at_least_a_millisecond) {
  Link link;
  link.send(0, 0);
  link.send(1, 0);
  link.acknowledge({{1, 1}}, 400 * microsecond);
  EXPECT_EQ(link.losses.due(), millisecond);
}

TEST(LossDetector, silence_marks_the_two_oldest_lost_at_growing_intervals) {
  Link link;
  for (uint32_t i = 0; i < 5; ++i) link.send(i, 0);
  const Nanos first = link.losses.due();
  EXPECT_EQ(first, 400 * microsecond + 4 * 200 * microsecond + LossDetector::ack_delay_max);
  link.expire(first - 1);
  EXPECT_TRUE(link.lost.empty());
  EXPECT_EQ(link.losses.due(), first) << "looking does not put it off";
  link.expire(first);
  EXPECT_EQ(link.lost, names({0, 1}));
  EXPECT_EQ(link.losses.due() - first, first * 3 / 2);
  Nanos now = first;
  for (uint32_t number = 5; number < 60; number += 2) {
    link.send(number, now);
    link.send(number + 1, now);
    EXPECT_LE(link.losses.due() - now, 50 * millisecond);
    now = link.losses.due();
    link.expire(now);
    EXPECT_EQ(link.lost.size(), 2u);
  }
  EXPECT_EQ(link.losses.due() - now, 50 * millisecond);
  link.acknowledge({{58, 60}}, now);
  for (uint32_t number = 61; number < 63; ++number) link.send(number, now);
  EXPECT_LE(link.losses.due() - now, 2 * millisecond + 200 * microsecond) << "heard again";
}

TEST(LossDetector, a_late_acknowledgement_of_a_lost_fragment_counts) {
  Link link;
  for (uint32_t i = 0; i < 10; ++i) link.send(i, 0);
  link.acknowledge({{5, 5}}, 1000);
  EXPECT_EQ(link.lost, names({0, 1, 2}));
  link.acknowledge({{0, 1}}, 2000);
  EXPECT_EQ(link.arrived, names({0, 1}));
  EXPECT_EQ(link.losses.spurious_count(), 2u);
  link.acknowledge({{8, 8}}, 3000);
  EXPECT_EQ(link.lost, names({})) << "5 had overtaken 0: now six must";
  link.acknowledge({{9, 9}}, 3000);
  EXPECT_EQ(link.lost, names({3}));
}

TEST(LossDetector, refused_fragments_are_repeated_at_growing_intervals_until_one_is_accepted) {
  Link link;
  for (uint32_t i = 0; i < 20; ++i) link.send(i, 0);
  auto nothing_taken = ack_of({});
  nothing_taken.feedback.highest_flow_seq = 19;
  link.losses.acknowledged(nothing_taken, link.rtt, 1000, link.arrived, link.lost);
  EXPECT_TRUE(link.lost.empty()) << "it would only be refused again";
  const Nanos first = link.losses.due();
  link.expire(first);
  EXPECT_EQ(link.lost.size(), 17u) << "all but those that others may have overtaken";
  for (uint32_t i = 20; i < 40; ++i) link.send(i, first);
  nothing_taken.feedback.highest_flow_seq = 39;
  link.losses.acknowledged(nothing_taken, link.rtt, first + 1000, link.arrived, link.lost);
  EXPECT_GT(link.losses.due() - first, first * 4 / 3);
  auto taken = ack_of({{25, 25}});
  taken.feedback.highest_flow_seq = 39;
  link.lost.clear();
  link.losses.acknowledged(taken, link.rtt, first + 2000, link.arrived, link.lost);
  EXPECT_EQ(link.lost.size(), 19u) << "17 to 36 but 25: there is memory again";
}

TEST(LossDetector, numbers_that_were_not_sent_are_ignored) {
  Link link;
  for (uint32_t i = 0; i < 6; ++i) link.send(i, 0);
  auto ack = ack_of({{0, 0}});
  ack.feedback.highest_flow_seq = 1'000'000;
  link.losses.acknowledged(ack, link.rtt, 1000, link.arrived, link.lost);
  EXPECT_EQ(link.lost, names({1, 2}));
  for (uint32_t i = 6; i < 9; ++i) link.send(i, 1000);
  ack = ack_of({{5, 5}});
  ack.feedback.highest_flow_seq = 5;
  link.lost.clear();
  link.losses.acknowledged(ack, link.rtt, 2000, link.arrived, link.lost);
  EXPECT_TRUE(link.lost.empty());
}

TEST(LossDetector, an_old_acknowledgement_changes_nothing) {
  Link link;
  for (uint32_t i = 0; i < 10; ++i) link.send(i, 0);
  link.acknowledge({{0, 3}}, 1000);
  EXPECT_EQ(link.arrived.size(), 4u);
  const auto due = link.losses.due();
  link.acknowledge({{0, 3}}, 900'000);
  EXPECT_TRUE(link.arrived.empty());
  EXPECT_EQ(link.losses.due(), due);
}

TEST(LossDetector, a_number_behind_outstanding_fragments_changes_nothing) {
  Link link;
  for (uint32_t i = 0; i < 4; ++i) link.send(i, 0);
  link.acknowledge({{1, 2}}, 1000);
  EXPECT_EQ(link.arrived, names({1, 2}));
  link.acknowledge({{1, 2}}, 2000);
  EXPECT_TRUE(link.arrived.empty());
  EXPECT_EQ(link.losses.spurious_count(), 0u);
}

TEST(LossDetector, the_oldest_lost_fragments_are_forgotten_when_the_ring_is_full) {
  Link link(16);
  uint32_t next = 0;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) link.send(next++, 1000);
    link.acknowledge({{next - 1, next - 1}}, 1000);
  }
  EXPECT_EQ(link.losses.outstanding(), 2u);
  link.acknowledge({{0, 100}}, 1000);
  EXPECT_TRUE(link.arrived.empty()) << "too long ago";
  link.acknowledge({{next - 20, next - 11}}, 1000);
  EXPECT_EQ(link.arrived.size(), 9u) << "the tenth had arrived";
}

TEST(LossDetector, ignores_numbers_of_other_datagrams_and_of_long_ago) {
  Link link;
  link.send(100, 0);
  link.send(110, 0);
  link.acknowledge({{101, 109}, {0, 99}}, 1000);
  EXPECT_TRUE(link.arrived.empty());
  EXPECT_TRUE(link.lost.empty());
  link.acknowledge({{0, 105}}, 1000);
  EXPECT_EQ(link.arrived, names({100}));
}

TEST(LossDetector, outstanding_fragments_are_bounded) {
  Link link(16);
  EXPECT_TRUE(link.losses.may_send(LossDetector::window_bytes_min, 0, link.rtt));
  EXPECT_FALSE(link.losses.may_send(LossDetector::window_bytes_min + 1, 0, link.rtt));
  EXPECT_TRUE(link.losses.may_send(450'000, 100'000'000, link.rtt)) << "twice 0.4 + 1 ms, and 2 ms of queues, at 100 MB/s";
  EXPECT_FALSE(link.losses.may_send(500'000, 100'000'000, link.rtt));
  for (uint32_t i = 0; i < 16; ++i) link.send(i, 0);
  EXPECT_FALSE(link.losses.may_send(1, 1'000'000'000, link.rtt));
  link.expire(link.losses.due());
  EXPECT_TRUE(link.losses.may_send(1, 1'000'000'000, link.rtt));
}

TEST(LossDetector, sending_continues_while_the_oldest_is_never_acknowledged) {
  Link link(16);
  Nanos now = 0;
  uint32_t next = 0, sent = 0;
  Names all_lost;
  for (int i = 0; i < 2000; ++i) {
    now += 20 * microsecond;
    if (link.losses.may_send(1, 1'000'000'000, link.rtt)) {
      link.send(next++, now);
      ++sent;
    }
    if (i % 4 == 0 && next > 3) {
      link.acknowledge({{next - 2, next - 2}}, now);
      all_lost.insert(all_lost.end(), link.lost.begin(), link.lost.end());
    }
    link.expire(now);
    all_lost.insert(all_lost.end(), link.lost.begin(), link.lost.end());
  }
  EXPECT_GT(sent, 1900u);
  EXPECT_GT(all_lost.size(), sent / 2);
  std::vector<uint32_t> indices;
  for (const auto& name : all_lost) indices.push_back(name.index);
  std::sort(indices.begin(), indices.end());
  EXPECT_EQ(std::adjacent_find(indices.begin(), indices.end()), indices.end()) << "each is called lost once";
}

TEST(LossDetector, forgotten_fragments_are_neither_confirmed_nor_lost) {
  for (const uint32_t base : {0u, UINT32_MAX - 3}) {
    Link link(256, base);
    for (uint32_t i = 0; i < 6; ++i) link.send(i, i);
    link.losses.forget();
    EXPECT_EQ(link.losses.outstanding(), 0u);
    EXPECT_EQ(link.losses.outstanding_bytes(), 0u);
    EXPECT_EQ(link.losses.due(), never);
    link.acknowledge({{0, 5}}, 1000);
    EXPECT_TRUE(link.arrived.empty());
    link.send(6, 2000);
    link.send(7, 2000);
    link.acknowledge({{0, 6}}, 3000);
    EXPECT_EQ(link.arrived, names({6}));
    EXPECT_EQ(link.losses.outstanding(), 1u);
  }
}

}  // namespace
}  // namespace unisono

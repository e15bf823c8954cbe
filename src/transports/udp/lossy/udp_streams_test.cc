#include "transports/udp/lossy/udp_streams.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace unisono {
namespace {

constexpr StreamName stream_name{.op = 7, .phase = 1};

class UdpStreamsTest : public testing::Test {
 protected:
  OutStream stream(size_t ranges, StreamName with = stream_name) {
    memory.assign(ranges * 100 - 50, std::byte{1});
    return {.to = 1, .name = with, .bytes = memory, .range_bytes = 100, .contributors = {}, .deadline_us = 33};
  }
  bool next(bool others_wait = false) {
    return streams.next(
        {.now = now, .answer_time = millisecond, .others_wait = others_wait, .payload_bytes_max = payload_bytes_max}, datagram);
  }
  // A stream whose ranges have 3000 bytes, that is three parts each.
  OutStream stream_of_long_ranges(size_t ranges) {
    memory.resize(ranges * 3000);
    for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i / 1000);
    return {.to = 1, .name = stream_name, .bytes = memory, .range_bytes = 3000, .contributors = {}, .deadline_us = 33};
  }
  void expect_part(uint32_t range, uint16_t index, bool repaired = false) {
    EXPECT_EQ(datagram.header.packet_index, range);
    EXPECT_TRUE((datagram.header.flags & datagram_part) != 0);
    EXPECT_EQ((datagram.header.flags & datagram_repaired) != 0, repaired);
    EXPECT_EQ(datagram.part, (RangePart{.index = index, .range_bytes = 3000}));
    EXPECT_EQ(datagram.payload.data(), memory.data() + range * 3000 + index * range_part_bytes);
    EXPECT_EQ(datagram.payload.size(), index == 2 ? 3000 - 2 * range_part_bytes : range_part_bytes);
  }
  DatagramFault ask(std::initializer_list<uint8_t> bits, uint32_t first = 0, uint16_t slice = 0, StreamName of = stream_name) {
    ByteWriter payload;
    payload.write(first);
    for (const auto byte : bits) payload.write(byte);
    DatagramHeader header;
    header.op = of.op;
    header.phase = of.phase;
    header.slice = slice;
    return streams.on_repair_request(header, payload.view());
  }
  size_t send_all() {
    size_t count = 0;
    while (next()) ++count;
    return count;
  }
  Bytes memory;
  UdpStreams streams;
  UdpStreams::Datagram datagram;
  Nanos now = second;
  size_t payload_bytes_max = SIZE_MAX;
};

TEST_F(UdpStreamsTest, every_range_is_sent_once_in_order) {
  std::vector<uint16_t> contributors(20);
  for (size_t i = 0; i < 20; ++i) contributors[i] = static_cast<uint16_t>(i);
  auto out = stream(20);
  out.contributors = contributors;
  streams.push(out, now);
  for (uint32_t range = 0; range < 20; ++range) {
    ASSERT_TRUE(next());
    EXPECT_EQ(datagram.header.kind, DatagramKind::data);
    EXPECT_EQ(datagram.header.op, 7u);
    EXPECT_EQ(datagram.header.phase, 1u);
    EXPECT_EQ(datagram.header.packet_index, range);
    EXPECT_EQ(datagram.header.contributors, range);
    EXPECT_EQ(datagram.header.deadline_us, 33u);
    EXPECT_EQ(datagram.payload.data(), memory.data() + range * 100);
    EXPECT_EQ(datagram.payload.size(), range == 19 ? 50u : 100u);
    EXPECT_EQ((datagram.header.flags & datagram_tail) != 0, range >= 12) << "the last 8 are the tail";
  }
  EXPECT_EQ(streams.counts().sent, 20u);
}

TEST_F(UdpStreamsTest, data_without_contributors_has_the_hash_of_its_call) {
  auto out = stream(2, {.op = 7, .phase = 0});
  out.call = 0xABCD;
  streams.push(out, now);
  for (int range = 0; range < 2; ++range) {
    ASSERT_TRUE(next());
    EXPECT_EQ(datagram.header.contributors, 0xABCD) << range;
  }
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.kind, DatagramKind::end);
  EXPECT_EQ(datagram.header.contributors, 0);
  now += 2 * millisecond;
  EXPECT_EQ(ask({0b10}, 0, 0, out.name), DatagramFault::none);
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.kind, DatagramKind::data);
  EXPECT_TRUE(datagram.header.flags & datagram_repaired);
  EXPECT_EQ(datagram.header.contributors, 0xABCD) << "also if it is sent again";
}

TEST_F(UdpStreamsTest, ranges_are_numbered_in_slices) {
  streams.push(stream(4100), now);
  for (int i = 0; i < 4097; ++i) ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.slice, 1u);
  EXPECT_EQ(datagram.header.packet_index, 0u);
}

TEST_F(UdpStreamsTest, the_tail_is_one_in_a_hundred_and_at_least_eight) {
  EXPECT_EQ(UdpStreams::tail_of(3), 3u);
  EXPECT_EQ(UdpStreams::tail_of(725), 8u);
  EXPECT_EQ(UdpStreams::tail_of(801), 9u);
  EXPECT_EQ(UdpStreams::tail_of(4096), 41u);
}

TEST_F(UdpStreamsTest, three_ends_follow_a_millisecond_apart) {
  streams.push(stream(2), now);
  StreamName told;
  ASSERT_TRUE(next() && next());
  EXPECT_FALSE(streams.take_sent(told)) << "its end has not been sent";
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.kind, DatagramKind::end);
  EXPECT_TRUE(datagram.payload.empty());
  ASSERT_TRUE(streams.take_sent(told));
  EXPECT_TRUE(told == stream_name);
  EXPECT_FALSE(streams.take_sent(told)) << "reported once";
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(next());
    EXPECT_EQ(streams.next_deadline(), now + millisecond);
    now += millisecond;
    ASSERT_TRUE(next());
    EXPECT_EQ(datagram.header.kind, DatagramKind::end);
  }
  EXPECT_FALSE(next());
}

TEST_F(UdpStreamsTest, an_unconfirmed_end_is_repeated_at_growing_intervals) {
  streams.push(stream(1), now);
  for (int i = 0; i < 3; ++i, now += millisecond) send_all();
  std::vector<Nanos> pauses;
  for (int i = 0; i < 6; ++i) {
    const auto due = streams.next_deadline();
    pauses.push_back(due - (now - (i == 0 ? millisecond : 0)));
    now = due;
    ASSERT_TRUE(next());
  }
  EXPECT_EQ(pauses, (std::vector<Nanos>{4 * millisecond, 8 * millisecond, 16 * millisecond, 32 * millisecond, 50 * millisecond,
                                        50 * millisecond}));
  ASSERT_EQ(ask({}), DatagramFault::none);
  EXPECT_EQ(streams.next_deadline(), never);
  EXPECT_FALSE(streams.is_unconfirmed(stream_name));
}

TEST_F(UdpStreamsTest, an_end_is_not_repeated_while_other_datagrams_wait) {
  streams.push(stream(1), now);
  for (int i = 0; i < 3; ++i, now += millisecond) send_all();
  now += second;
  EXPECT_FALSE(next(true));
  EXPECT_GT(streams.next_deadline(), now);
}

TEST_F(UdpStreamsTest, requested_ranges_are_sent_again_with_the_repaired_flag) {
  streams.push(stream(20), now);
  send_all();
  now += 2 * millisecond;
  ASSERT_EQ(ask({0b00000101, 0b10000000}, 1), DatagramFault::none);
  std::vector<uint32_t> again;
  while (next()) {
    if (datagram.header.kind == DatagramKind::end) continue;
    EXPECT_TRUE(datagram.header.flags & datagram_repaired);
    again.push_back(datagram.header.packet_index);
  }
  EXPECT_EQ(again, (std::vector<uint32_t>{1, 3, 16}));
  EXPECT_EQ(streams.counts().repaired, 3u);
}

TEST_F(UdpStreamsTest, a_range_is_repeated_at_most_once_per_answer_time) {
  streams.push(stream(4), now);
  send_all();
  ASSERT_EQ(ask({1}), DatagramFault::none);
  EXPECT_FALSE(next()) << "it may still be on its way";
  now += millisecond;
  send_all();
  ASSERT_EQ(ask({1}), DatagramFault::none);
  ASSERT_TRUE(next());
  ASSERT_EQ(ask({1}), DatagramFault::none);
  EXPECT_FALSE(next());
  EXPECT_EQ(streams.counts().repaired, 1u);
}

TEST_F(UdpStreamsTest, unsent_ranges_are_not_repaired) {
  streams.push(stream(20), now);
  ASSERT_TRUE(next());
  now += second;
  ASSERT_EQ(ask({0xFF}), DatagramFault::none);
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.packet_index, 0u);
  EXPECT_TRUE(datagram.header.flags & datagram_repaired);
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.packet_index, 1u);
  EXPECT_FALSE(datagram.header.flags & datagram_repaired);
}

TEST_F(UdpStreamsTest, bits_outside_of_the_stream_are_ignored) {
  streams.push(stream(3), now);
  send_all();
  now += second;
  EXPECT_EQ(ask({0xFF, 0xFF, 0xFF}, 0), DatagramFault::none);
  EXPECT_EQ(ask({0xFF}, 4095), DatagramFault::none);
  EXPECT_EQ(ask({0xFF}, 4096), DatagramFault::place);
  EXPECT_EQ(ask({0xFF}, UINT32_MAX), DatagramFault::place);
  EXPECT_EQ(ask({0xFF}, 0, 1), DatagramFault::place) << "there is no second slice";
  size_t data = 0;
  while (next()) data += datagram.header.kind == DatagramKind::data;
  EXPECT_EQ(data, 3u);
}

TEST_F(UdpStreamsTest, requests_for_other_streams_are_refused) {
  streams.push(stream(3), now);
  EXPECT_EQ(ask({1}, 0, 0, {.op = 6, .phase = 1}), DatagramFault::op_old);
  EXPECT_EQ(ask({1}, 0, 0, {.op = 8, .phase = 1}), DatagramFault::op_ahead);
  DatagramHeader header;
  header.op = 7;
  header.phase = 1;
  const Bytes three(3), much(5 + repair_bitmap_bytes_max);
  EXPECT_EQ(streams.on_repair_request(header, three), DatagramFault::size);
  EXPECT_EQ(streams.on_repair_request(header, much), DatagramFault::size);
}

TEST_F(UdpStreamsTest, a_dropped_stream_is_never_read_again) {
  streams.push(stream(20), now);
  ASSERT_TRUE(next());
  EXPECT_TRUE(streams.is_unconfirmed(stream_name));
  streams.drop(stream_name);
  EXPECT_FALSE(next());
  EXPECT_FALSE(streams.is_unconfirmed(stream_name));
  EXPECT_EQ(ask({1}), DatagramFault::op_old);
  EXPECT_EQ(streams.next_deadline(), never);
}

TEST_F(UdpStreamsTest, a_confirmed_stream_is_sent_no_further) {
  streams.push(stream(20), now);
  ASSERT_TRUE(next());
  ASSERT_EQ(ask({}), DatagramFault::none);
  EXPECT_FALSE(next());
  StreamName told;
  EXPECT_TRUE(streams.take_sent(told));
  EXPECT_EQ(streams.held(), 1u);
}

TEST_F(UdpStreamsTest, a_stream_without_ranges_is_sent_at_once) {
  streams.push({.to = 1, .name = stream_name, .bytes = {}, .range_bytes = 100}, now);
  StreamName told;
  EXPECT_FALSE(next());
  EXPECT_TRUE(streams.take_sent(told));
}

TEST_F(UdpStreamsTest, streams_go_in_the_order_in_which_they_were_given) {
  streams.push(stream(2, {.op = 9, .phase = 0}), now);
  streams.push({.to = 1, .name = {.op = 8, .phase = 0}, .bytes = memory, .range_bytes = 100}, now);
  std::vector<uint32_t> ops;
  while (next()) ops.push_back(datagram.header.op);
  EXPECT_EQ(ops, (std::vector<uint32_t>{9, 9, 9, 8, 8, 8}));
}

TEST_F(UdpStreamsTest, ranges_that_the_path_does_not_carry_are_sent_in_parts) {
  streams.push(stream_of_long_ranges(2), now);
  payload_bytes_max = 1416;
  StreamName told;
  for (uint32_t range = 0; range < 2; ++range) {
    for (uint16_t part = 0; part < 3; ++part) {
      EXPECT_FALSE(streams.take_sent(told));
      ASSERT_TRUE(streams.ready());
      ASSERT_TRUE(next());
      expect_part(range, part);
    }
  }
  EXPECT_EQ(streams.counts().sent, 2u);
  EXPECT_EQ(streams.counts().more_parts, 4u);
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.kind, DatagramKind::end);
  EXPECT_TRUE(streams.take_sent(told));
}

TEST_F(UdpStreamsTest, when_the_path_carries_whole_ranges_again_the_begun_range_is_finished_in_parts) {
  streams.push(stream_of_long_ranges(3), now);
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.payload.size(), 3000u);
  EXPECT_EQ(datagram.header.flags & datagram_part, 0);
  payload_bytes_max = 1144;
  ASSERT_TRUE(next());
  expect_part(1, 0);
  payload_bytes_max = SIZE_MAX;
  for (uint16_t part = 1; part < 3; ++part) {
    ASSERT_TRUE(next());
    expect_part(1, part);
  }
  ASSERT_TRUE(next());
  EXPECT_EQ(datagram.header.packet_index, 2u);
  EXPECT_EQ(datagram.payload.size(), 3000u);
}

TEST_F(UdpStreamsTest, a_requested_range_is_repeated_with_all_its_parts) {
  streams.push(stream_of_long_ranges(2), now);
  send_all();
  now += 4 * millisecond;
  payload_bytes_max = 1144;
  EXPECT_EQ(ask({2}), DatagramFault::none);
  for (uint16_t part = 0; part < 3; ++part) {
    ASSERT_TRUE(next());
    expect_part(1, part, true);
  }
  EXPECT_EQ(streams.counts().repaired, 1u);
}

TEST_F(UdpStreamsTest, a_dropped_or_confirmed_stream_sends_no_further_part) {
  for (const bool dropped : {true, false}) {
    streams.push(stream_of_long_ranges(2), now);
    payload_bytes_max = 1144;
    ASSERT_TRUE(next());
    if (dropped) streams.drop(stream_name);
    else EXPECT_EQ(ask({}), DatagramFault::none);
    EXPECT_FALSE(streams.ready());
    EXPECT_FALSE(next());
    streams.drop(stream_name);
  }
}

}  // namespace
}  // namespace unisono

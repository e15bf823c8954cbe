#include "transports/udp/reliable/udp_fragments.h"

#include <gtest/gtest.h>

#include <set>

#include "base/random.h"

namespace unisono {
namespace {

DatagramHeader header_of(uint32_t index, uint32_t frame_bytes, uint32_t fragment_bytes, uint32_t payload_bytes) {
  DatagramHeader header;
  header.kind = DatagramKind::fragment;
  header.op = 5;
  header.packet_index = index;
  header.deadline_us = frame_bytes;
  header.slice = static_cast<uint16_t>(fragment_bytes);
  header.payload_bytes = static_cast<uint16_t>(payload_bytes);
  return header;
}
bool taken(uint32_t index, uint32_t frame_bytes, uint32_t fragment_bytes, uint32_t payload_bytes) {
  FragmentPosition position;
  return read_position(header_of(index, frame_bytes, fragment_bytes, payload_bytes), position);
}

TEST(FragmentPosition, a_position_survives_the_wire) {
  DatagramHeader header;
  write_position({.name{7, 2}, .frame_bytes = 2500, .fragment_bytes = 1000}, header);
  EXPECT_EQ(header.payload_bytes, 500);
  FragmentPosition position;
  ASSERT_TRUE(read_position(header, position));
  EXPECT_EQ(position.name, (FragmentName{7, 2}));
  EXPECT_EQ(position.offset(), 2000u);
  EXPECT_EQ(position.fragments(), 3u);
}
TEST(FragmentPosition, the_longest_frame_in_the_shortest_fragments_is_accepted) {
  EXPECT_TRUE(taken(0, frame_bytes_max, fragment_bytes_min, fragment_bytes_min));
  EXPECT_TRUE(taken(0, frame_bytes_max, fragment_bytes_max, fragment_bytes_max));
}
TEST(FragmentPosition, a_frame_shorter_than_its_header_is_refused) {
  EXPECT_TRUE(taken(0, 64, 1000, 64));
  EXPECT_FALSE(taken(0, 63, 1000, 63));
}
TEST(FragmentPosition, a_frame_too_long_is_refused) { EXPECT_FALSE(taken(0, frame_bytes_max + 1, 1000, 1000)); }
TEST(FragmentPosition, fragments_too_short_are_refused) {
  EXPECT_FALSE(taken(0, 3000, fragment_bytes_min - 1, fragment_bytes_min - 1));
}
TEST(FragmentPosition, fragments_of_no_bytes_are_refused) { EXPECT_FALSE(taken(0, 3000, 0, 0)); }
TEST(FragmentPosition, fragments_too_long_are_refused) { EXPECT_FALSE(taken(0, 65'500, 65'500, 65'500)); }
TEST(FragmentPosition, a_position_outside_of_its_frame_is_refused) {
  EXPECT_TRUE(taken(2, 3000, 1000, 1000));
  EXPECT_FALSE(taken(3, 3000, 1000, 0));
  EXPECT_FALSE(taken(UINT32_MAX, 3000, 1000, 1000));
}
TEST(FragmentPosition, a_payload_of_another_size_is_refused) {
  EXPECT_FALSE(taken(0, 2500, 1000, 999));
  EXPECT_FALSE(taken(2, 2500, 1000, 1000));
  EXPECT_TRUE(taken(2, 2500, 1000, 500));
}

TEST(FragmentParts, together_are_the_frame) {
  for (const uint32_t payload_bytes : {0u, 1u, 448u, 449u, 5000u}) {
    std::vector<std::byte> payload(payload_bytes);
    for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<std::byte>(i * 7 + 1);
    FrameHeader header;
    header.payload_bytes = payload_bytes;
    seal_frame(header);
    std::vector<std::byte> whole(reinterpret_cast<std::byte*>(&header), reinterpret_cast<std::byte*>(&header) + 64), joined;
    whole.insert(whole.end(), payload.begin(), payload.end());
    FragmentPosition position{.name{}, .frame_bytes = 64 + payload_bytes, .fragment_bytes = 512};
    for (; position.name.index < position.fragments(); ++position.name.index) {
      const auto parts = fragment_parts(position, header, payload);
      EXPECT_EQ(parts.header.size() + parts.payload.size(), position.bytes());
      joined.insert(joined.end(), parts.header.begin(), parts.header.end());
      joined.insert(joined.end(), parts.payload.begin(), parts.payload.end());
    }
    EXPECT_EQ(joined, whole);
  }
}

std::vector<FragmentName> take(FragmentQueue& queue, int count) {
  std::vector<FragmentName> names;
  for (int i = 0; i < count; ++i) {
    const auto position = queue.next();
    if (!position) break;
    names.push_back(position->name);
    queue.taken(position->name);
  }
  return names;
}

TEST(FragmentQueue, lost_fragments_are_sent_before_new_ones) {
  FragmentQueue queue;
  EXPECT_EQ(queue.push(1500, 1000), 0u);
  EXPECT_EQ(queue.push(2500, 1000), 1u);
  EXPECT_EQ(take(queue, 3), (std::vector<FragmentName>{{0, 0}, {0, 1}, {1, 0}}));
  queue.lost({1, 0});
  queue.lost({0, 1});
  queue.lost({0, 0});
  queue.lost({0, 0});
  EXPECT_EQ(take(queue, 9), (std::vector<FragmentName>{{0, 0}, {0, 1}, {1, 0}, {1, 1}, {1, 2}}));
  EXPECT_EQ(queue.next(), std::nullopt);
}

TEST(FragmentQueue, lost_fragments_of_all_frames_take_turns) {
  FragmentQueue queue;
  for (int i = 0; i < 3; ++i) queue.push(1500, 1000);
  take(queue, 6);
  for (uint32_t i = 0; i < 3; ++i) queue.lost({i, 0});
  for (uint32_t i = 0; i < 7; ++i) {
    const auto name = take(queue, 1);
    EXPECT_EQ(name, (std::vector<FragmentName>{{i % 3, 0}}));
    queue.lost(name[0]);
  }
}

TEST(FragmentQueue, new_frames_do_not_wait_for_ever_behind_lost_fragments) {
  FragmentQueue queue;
  queue.push(1500, 1000);
  take(queue, 2);
  queue.push(64, 1000);
  queue.lost({0, 0});
  int lost = 0;
  for (; queue.next()->name.frame == 0; ++lost) {
    ASSERT_LT(lost, 10);
    queue.taken({0, 0});
    queue.lost({0, 0});
  }
  EXPECT_EQ(lost, 8);
  EXPECT_TRUE(queue.has_unsent());
  queue.taken({1, 0});
  EXPECT_FALSE(queue.has_unsent());
  EXPECT_TRUE(queue.next().has_value());
}

TEST(FragmentQueue, a_late_arrival_is_not_sent_again) {
  FragmentQueue queue;
  queue.push(2500, 1000);
  take(queue, 3);
  queue.lost({0, 1});
  EXPECT_FALSE(queue.arrived({0, 1}));
  EXPECT_EQ(queue.next(), std::nullopt);
  queue.lost({0, 1});
  EXPECT_EQ(queue.next(), std::nullopt) << "called lost too late";
}

TEST(FragmentQueue, the_arrival_of_a_frame_is_reported_once) {
  FragmentQueue queue;
  queue.push(64, 1000);
  queue.push(1500, 1000);
  take(queue, 3);
  EXPECT_FALSE(queue.arrived({1, 0}));
  EXPECT_TRUE(queue.arrived({1, 1}));
  EXPECT_FALSE(queue.arrived({1, 1}));
  EXPECT_EQ(queue.oldest(), 0u);
  EXPECT_TRUE(queue.arrived({0, 0}));
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.oldest(), 2u);
}

TEST(FragmentQueue, unsent_fragments_are_ignored) {
  FragmentQueue queue;
  queue.push(1500, 1000);
  EXPECT_FALSE(queue.arrived({0, 0}));
  EXPECT_FALSE(queue.arrived({0, 99}));
  EXPECT_FALSE(queue.arrived({1, 0}));
  EXPECT_FALSE(queue.arrived({UINT32_MAX, 0}));
  queue.lost({0, 0});
  queue.lost({7, 0});
  EXPECT_EQ(take(queue, 9).size(), 2u);
}

TEST(FragmentQueue, the_queue_is_full_while_the_oldest_frame_has_not_arrived) {
  FragmentQueue queue;
  for (uint32_t i = 0; i < fragment_frames_max; ++i) {
    EXPECT_FALSE(queue.full());
    queue.push(64, 1000);
  }
  EXPECT_TRUE(queue.full());
  take(queue, 1000);
  for (uint32_t i = 1; i < fragment_frames_max; ++i) EXPECT_TRUE(queue.arrived({i, 0}));
  EXPECT_TRUE(queue.full());
  EXPECT_TRUE(queue.arrived({0, 0}));
  EXPECT_TRUE(queue.empty());
}

TEST(FragmentQueue, the_queue_is_full_when_the_receiver_might_be_out_of_memory) {
  FragmentQueue queue;
  queue.push(frame_bytes_max, fragment_bytes_max);
  EXPECT_FALSE(queue.full());
  queue.push(frame_bytes_max, fragment_bytes_max);
  EXPECT_TRUE(queue.full());
  while (const auto position = queue.next()) {
    queue.taken(position->name);
    if (position->name.frame == 1) queue.arrived(position->name);
  }
  EXPECT_FALSE(queue.full());
}

TEST(FragmentQueue, every_frame_arrives_in_any_order_of_events) {
  const uint64_t seed = 9;
  Random random(seed);
  FragmentQueue queue;
  std::vector<FragmentName> in_flight;
  std::set<uint32_t> whole;
  uint32_t pushed = 0, sent = 0, fragments = 0;
  while (whole.size() < 2000) {
    if (pushed < 2000 && !queue.full() && random.chance(0.3)) {
      const auto bytes = static_cast<uint32_t>(64 + random.below(5000));
      queue.push(bytes, 512);
      fragments += (bytes + 511) / 512;
      ++pushed;
    }
    if (const auto position = queue.next(); position && random.chance(0.7)) {
      queue.taken(position->name);
      in_flight.push_back(position->name);
      ++sent;
    }
    if (in_flight.empty() || random.chance(0.3)) continue;
    const size_t index = random.below(in_flight.size());
    const auto name = in_flight[index];
    in_flight[index] = in_flight.back();
    in_flight.pop_back();
    if (random.chance(0.3)) {
      queue.lost(name);
    } else if (queue.arrived(name)) {
      EXPECT_TRUE(whole.insert(name.frame).second);
    }
    ASSERT_LT(sent, 100'000u);
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_NEAR(sent, fragments / 0.7, 0.03 * fragments);
}

// Cutting frames again ---------------------------------------------------------------------------------------------------

TEST(RecutBits, a_new_fragment_has_arrived_only_if_all_its_bytes_had) {
  // Old fragments of 1416 bytes: [0, 1416), [1416, 2832), [2832, 4248), [4248, 5000). New ones of 1144 bytes.
  const auto recut = [](uint64_t bits) { return recut_bits({bits}, 5000, 1416, 1144).at(0); };
  EXPECT_EQ(recut(0b1111), 0b11111u);
  EXPECT_EQ(recut(0), 0u);
  EXPECT_EQ(recut(0b0001), 0b00001u) << "[1144, 2288) lies in the second old fragment, too";
  EXPECT_EQ(recut(0b0011), 0b00011u);
  EXPECT_EQ(recut(0b0010), 0b00000u);
  EXPECT_EQ(recut(0b0110), 0b00100u) << "[2288, 3432)";
  EXPECT_EQ(recut(0b1000), 0b10000u) << "[4576, 5000)";
  EXPECT_EQ(count_bits(recut_bits({0b1111}, 5000, 1416, 1144)), 5u);
}

TEST(FragmentQueue, after_a_recut_all_bytes_that_have_not_arrived_are_sent_once_more_and_nothing_else) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    FragmentQueue queue;
    const uint32_t frame_bytes = 64 + static_cast<uint32_t>(random.below(60'000)), from = random.chance(0.5) ? 1416 : 8916;
    std::vector<bool> arrived(frame_bytes), sent_again(frame_bytes);
    ASSERT_EQ(queue.push(frame_bytes, from), 0u);
    const auto sent = random.below(FragmentPosition{.name{}, .frame_bytes = frame_bytes, .fragment_bytes = from}.fragments());
    for (uint64_t i = 0; i < sent; ++i) {
      const auto position = *queue.next();
      queue.taken(position.name);
      if (!random.chance(0.4)) continue;
      queue.arrived(position.name);
      std::fill_n(arrived.begin() + position.offset(), position.bytes(), true);
    }
    queue.recut();
    while (const auto position = queue.next()) {
      EXPECT_EQ(position->fragment_bytes, recut_fragment_bytes);
      queue.taken(position->name);
      for (uint32_t at = position->offset(); at < position->offset() + position->bytes(); ++at) {
        EXPECT_FALSE(sent_again[at]);
        sent_again[at] = true;
      }
      const bool whole = queue.arrived(position->name);
      EXPECT_EQ(whole, queue.empty());
    }
    EXPECT_TRUE(queue.empty());
    for (uint32_t at = 0; at < frame_bytes; ++at) EXPECT_TRUE(arrived[at] || sent_again[at]) << at;
  }
}

TEST(FragmentQueue, a_recut_leaves_short_fragments_as_they_are_and_repeats_them) {
  FragmentQueue queue;
  queue.push(3000, 1000);
  for (int i = 0; i < 2; ++i) queue.taken(queue.next()->name);
  queue.arrived({0, 1});
  queue.recut();
  EXPECT_EQ(queue.next()->name, (FragmentName{0, 0}));
  EXPECT_EQ(queue.next()->fragment_bytes, 1000u);
  queue.taken({0, 0});
  EXPECT_EQ(queue.next()->name, (FragmentName{0, 2}));
}

}  // namespace
}  // namespace unisono

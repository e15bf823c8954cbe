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
  FragmentPlace place;
  return get_place(header_of(index, frame_bytes, fragment_bytes, payload_bytes), place);
}

TEST(FragmentPlace, survives_the_wire) {
  DatagramHeader header;
  put_place({.name{7, 2}, .frame_bytes = 2500, .fragment_bytes = 1000}, header);
  EXPECT_EQ(header.payload_bytes, 500);
  FragmentPlace place;
  ASSERT_TRUE(get_place(header, place));
  EXPECT_EQ(place.name, (FragmentName{7, 2}));
  EXPECT_EQ(place.offset(), 2000u);
  EXPECT_EQ(place.fragments(), 3u);
}
TEST(FragmentPlace, of_the_longest_frame_in_the_shortest_fragments_is_taken) {
  EXPECT_TRUE(taken(0, frame_bytes_max, fragment_bytes_min, fragment_bytes_min));
  EXPECT_TRUE(taken(0, frame_bytes_max, fragment_bytes_max, fragment_bytes_max));
}
TEST(FragmentPlace, of_a_frame_shorter_than_its_header_is_refused) {
  EXPECT_TRUE(taken(0, 64, 1000, 64));
  EXPECT_FALSE(taken(0, 63, 1000, 63));
}
TEST(FragmentPlace, of_a_frame_too_long_is_refused) { EXPECT_FALSE(taken(0, frame_bytes_max + 1, 1000, 1000)); }
TEST(FragmentPlace, of_fragments_too_short_is_refused) {
  EXPECT_FALSE(taken(0, 3000, fragment_bytes_min - 1, fragment_bytes_min - 1));
}
TEST(FragmentPlace, of_fragments_of_no_bytes_is_refused) { EXPECT_FALSE(taken(0, 3000, 0, 0)); }
TEST(FragmentPlace, of_fragments_too_long_is_refused) { EXPECT_FALSE(taken(0, 65'500, 65'500, 65'500)); }
TEST(FragmentPlace, outside_of_its_frame_is_refused) {
  EXPECT_TRUE(taken(2, 3000, 1000, 1000));
  EXPECT_FALSE(taken(3, 3000, 1000, 0));
  EXPECT_FALSE(taken(UINT32_MAX, 3000, 1000, 1000));
}
TEST(FragmentPlace, with_a_payload_of_another_size_is_refused) {
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
    FragmentPlace place{.name{}, .frame_bytes = 64 + payload_bytes, .fragment_bytes = 512};
    for (; place.name.index < place.fragments(); ++place.name.index) {
      const auto parts = fragment_parts(place, header, payload);
      EXPECT_EQ(parts.header.size() + parts.payload.size(), place.bytes());
      joined.insert(joined.end(), parts.header.begin(), parts.header.end());
      joined.insert(joined.end(), parts.payload.begin(), parts.payload.end());
    }
    EXPECT_EQ(joined, whole);
  }
}

std::vector<FragmentName> take(FragmentQueue& queue, int count) {
  std::vector<FragmentName> names;
  for (int i = 0; i < count; ++i) {
    const auto place = queue.next();
    if (!place) break;
    names.push_back(place->name);
    queue.taken(place->name);
  }
  return names;
}

TEST(FragmentQueue, sends_lost_ones_first_and_then_what_was_never_sent) {
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

TEST(FragmentQueue, lets_lost_ones_of_all_frames_take_turns) {
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

TEST(FragmentQueue, lets_no_frame_wait_for_ever_behind_lost_ones) {
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

TEST(FragmentQueue, does_not_send_again_what_has_arrived_after_all) {
  FragmentQueue queue;
  queue.push(2500, 1000);
  take(queue, 3);
  queue.lost({0, 1});
  EXPECT_FALSE(queue.arrived({0, 1}));
  EXPECT_EQ(queue.next(), std::nullopt);
  queue.lost({0, 1});
  EXPECT_EQ(queue.next(), std::nullopt) << "called lost too late";
}

TEST(FragmentQueue, says_once_that_a_frame_has_arrived) {
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

TEST(FragmentQueue, ignores_what_it_never_sent) {
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

TEST(FragmentQueue, is_full_while_the_oldest_frame_has_not_arrived) {
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

TEST(FragmentQueue, is_full_when_the_receiver_might_be_out_of_memory) {
  FragmentQueue queue;
  queue.push(frame_bytes_max, fragment_bytes_max);
  EXPECT_FALSE(queue.full());
  queue.push(frame_bytes_max, fragment_bytes_max);
  EXPECT_TRUE(queue.full());
  while (const auto place = queue.next()) {
    queue.taken(place->name);
    if (place->name.frame == 1) queue.arrived(place->name);
  }
  EXPECT_FALSE(queue.full());
}

TEST(FragmentQueue, sends_everything_whatever_the_order_of_events) {
  const uint64_t seed = 9;
  Random random(seed);
  FragmentQueue queue;
  std::vector<FragmentName> under_way;
  std::set<uint32_t> whole;
  uint32_t pushed = 0, sent = 0, fragments = 0;
  while (whole.size() < 2000) {
    if (pushed < 2000 && !queue.full() && random.chance(0.3)) {
      const auto bytes = static_cast<uint32_t>(64 + random.below(5000));
      queue.push(bytes, 512);
      fragments += (bytes + 511) / 512;
      ++pushed;
    }
    if (const auto place = queue.next(); place && random.chance(0.7)) {
      queue.taken(place->name);
      under_way.push_back(place->name);
      ++sent;
    }
    if (under_way.empty() || random.chance(0.3)) continue;
    const size_t index = random.below(under_way.size());
    const auto name = under_way[index];
    under_way[index] = under_way.back();
    under_way.pop_back();
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

}  // namespace
}  // namespace unisono

// Promises about memory: credit (permission to send), slots, zero-copy views, and sends that are cancelled.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "transport_promises_data.h"

namespace unisono::conformance {

inline void frames_without_payload_and_failures_need_no_credit(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(256u << 10, test_seed());
  // Transport 1 is not polled, so it receives nothing, and the credit of transport 0 must run out.
  size_t sent = 0;
  for (; sent < 2000 && cluster.at(0).credit(1) > 0; ++sent)
    cluster.at(0).send(1, data_header(sent, payload.size()), payload, sent);
  ASSERT_EQ(cluster.at(0).credit(1), 0u) << "the credit has no end";
  for (uint64_t i = 0; i < 100; ++i) {
    auto header = data_header(10'000 + i, 0);
    header.kind = FrameKind::credit;
    EXPECT_TRUE(cluster.at(0).send(1, header, {}, 0));
  }
  for (uint64_t i = 0; i < 20; ++i) {
    const auto reason = pattern(200, i);
    auto header = data_header(20'000 + i, reason.size());
    header.kind = FrameKind::failed;
    cluster.at(0).send(1, header, recorders[0].keep(reason), 20'000 + i);
  }
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == sent + 120; }));
  uint64_t reasons = 0;
  for (const auto& frame : recorders[1].frames) {
    if (frame.header.kind != FrameKind::failed) continue;
    ++reasons;
    EXPECT_TRUE(same(frame.payload, pattern(200, frame.header.operation - 20'000)));
  }
  EXPECT_EQ(reasons, 20u);
}

inline void a_slot_reaches_several_peers(Cluster& cluster) {
  Recorders recorders(cluster);
  std::vector<PeerIndex> others(cluster.size() - 1);
  std::iota(others.begin(), others.end(), PeerIndex{1});
  if (cluster.at(0).slot_bytes() == 0) {
    EXPECT_FALSE(cluster.at(0).acquire(others, 100, false));
    return;
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}, size_t{1} << 20}) {
    Slot slot;
    ASSERT_TRUE(recorders.until([&] { return static_cast<bool>(slot = cluster.at(0).acquire(others, size, true)); }));
    ASSERT_GE(slot.capacity, size);
    const auto payload = pattern(size, test_seed() + size);
    std::copy(payload.begin(), payload.end(), slot.data);
    cluster.at(0).commit(slot, data_header(size, size));
    for (const auto peer : others) {
      ASSERT_TRUE(recorders.until([&] { return recorders[peer].frames.size() == 1; }));
      EXPECT_TRUE(same(recorders[peer].frames[0].payload, payload));
      recorders[peer].frames.clear();
    }
  }
}

inline void copies_reach_all_given_peers_or_none(Cluster& cluster) {
  Recorders recorders(cluster);
  std::vector<PeerIndex> others(cluster.size() - 1);
  std::iota(others.begin(), others.end(), PeerIndex{1});
  const auto payload_of = [](size_t i) {
    constexpr size_t sizes[] = {1, 1000, 5000, 0};
    return pattern(sizes[i % 4], test_seed() + i);
  };
  const auto send = [&](size_t i) {
    auto payload = payload_of(i);
    const bool sent = cluster.at(0).send_copies(others, data_header(i, payload.size()), payload.data());
    std::fill(payload.begin(), payload.end(), std::byte{0xEE});
    return sent;
  };
  if (cluster.at(0).slot_bytes() == 0) {
    EXPECT_FALSE(send(0));
    return;
  }
  // At first, no peer reads, until the credit has run out. After all peers have read, sending must be possible again.
  size_t count = 0;
  for (int round = 0; round < 2; ++round) {
    const size_t before = count;
    while (count - before < 100'000 && send(count)) ++count;
    EXPECT_GT(count, before);
    EXPECT_LT(count - before, 100'000u) << "the credit has no end";
    for (const auto peer : others) {
      ASSERT_TRUE(recorders.until([&] { return recorders[peer].frames.size() == count; }));
    }
  }
  for (const auto peer : others) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(recorders[peer].frames[i].header.operation, i);
      EXPECT_TRUE(same(recorders[peer].frames[i].payload, payload_of(i)));
    }
  }
}

inline void an_abandoned_slot_is_free_again(Cluster& cluster) {
  Recorders recorders(cluster);
  const std::vector<PeerIndex> peer = {1};
  if (cluster.at(0).slot_bytes() == 0) return;
  for (int i = 0; i < 2000; ++i) {
    const auto slot = cluster.at(0).acquire(peer, 64u << 10, i % 2 == 0);
    ASSERT_TRUE(slot) << "slot " << i;
    cluster.at(0).abandon(slot);
  }
  // Acquire all slots. Their number must be limited. Slots that are abandoned must become free again.
  std::vector<Slot> slots;
  while (slots.size() < 2000) {
    const auto slot = cluster.at(0).acquire(peer, 64u << 10, true);
    if (!slot) break;
    slots.push_back(slot);
  }
  EXPECT_GT(slots.size(), 0u);
  EXPECT_LT(slots.size(), 2000u) << "the slots have no end";
  for (const auto& slot : slots) cluster.at(0).abandon(slot);
  const auto slot = cluster.at(0).acquire(peer, 64u << 10, true);
  EXPECT_TRUE(slot);
  if (slot) cluster.at(0).abandon(slot);
}

inline void views_stay_intact_and_are_released_in_any_order(Cluster& cluster) {
  Recorders recorders(cluster);
  Random random(test_seed());
  recorders[1].keep_views = true;
  for (int round = 0; round < 5; ++round) {
    constexpr size_t count = 12;
    std::vector<Bytes> payloads;
    for (size_t i = 0; i < count; ++i) {
      payloads.push_back(pattern(1 + random.below(200'000), random.next()));
      ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(i, payloads[i].size()), payloads[i]));
    }
    ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == count; }));
    auto& views = recorders[1].views;
    ASSERT_EQ(views.size(), count);
    for (size_t i = 0; i < count; ++i) {
      const auto& meant = payloads[recorders[1].frames[i].header.operation];
      EXPECT_TRUE(same(std::span(views[i].data, views[i].bytes), meant)) << "view " << i << " changed";
    }
    for (size_t left = count; left > 0; --left) {
      std::swap(views[random.below(left)], views[left - 1]);
      cluster.at(1).release(views[left - 1]);
    }
    views.clear();
    recorders[1].frames.clear();
  }
}

inline void a_cancelled_send_leaves_its_memory_and_the_link_alone(Cluster& cluster) {
  Recorders recorders(cluster);
  constexpr size_t size = 8u << 20;
  constexpr uint64_t mask = ~uint64_t{0xFF}, match = 0x100;
  const auto original = pattern(size, test_seed());
  auto memory = original;
  // The receiver is not polled, so at some point a frame is only partly sent. The low byte of an id counts the frames. The
  // other bits are those that cancel() compares.
  uint64_t sent = 0;
  bool pending = false;
  while (sent < 20 && cluster.at(0).credit(1) > 0) {
    pending |= !cluster.at(0).send(1, data_header(match + sent, size), memory, match + sent);
    ++sent;
  }
  cluster.at(0).cancel({.match = match, .mask = mask, .group = 99, .operation = 99});
  std::memset(memory.data(), 0x11, memory.size());
  const auto last = pattern(5000, test_seed() + 1);
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(0x999, last.size()), last, 0x999));
  ASSERT_TRUE(recorders.until([&] {
    return std::ranges::any_of(recorders[1].frames, [](const auto& frame) { return frame.header.operation == 0x999; });
  }));
  for (int turn = 0; turn < 100; ++turn) recorders.turn_all();
  for (const auto& frame : recorders[1].frames) {
    const auto& meant = frame.header.operation == 0x999 ? last : original;
    EXPECT_TRUE(same(frame.payload, meant)) << "memory was used after cancel, operation " << frame.header.operation;
  }
  for (const auto& [id, times] : recorders[0].sent_ids) EXPECT_NE(id & mask, match) << "sent() after cancel";
  EXPECT_TRUE(recorders[1].losses.empty());
}

inline void a_cancelled_placement_is_not_touched(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(payload_bytes_max, test_seed());
  Bytes target(payload.size(), std::byte{0});
  recorders[1].on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return target.data(); };
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(5, payload.size()), payload, 5));
  ASSERT_TRUE(recorders.until([&] { return recorders[1].buffer_requests > 0 || !recorders[1].frames.empty(); }));
  const bool half = recorders[1].frames.empty();
  cluster.at(1).cancel({.match = 1, .mask = ~uint64_t{0}, .group = 7, .operation = 5});
  std::memset(target.data(), 0x22, target.size());
  Bytes second(3000);
  recorders[1].on_receive_buffer = [&](PeerIndex, const FrameHeader& header) {
    return header.operation == 6 ? second.data() : nullptr;
  };
  const auto last = pattern(second.size(), test_seed() + 1);
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(6, last.size()), last, 6));
  ASSERT_TRUE(
      recorders.until([&] { return !recorders[1].frames.empty() && recorders[1].frames.back().header.operation == 6; }));
  EXPECT_EQ(recorders[1].frames.back().payload, last);
  EXPECT_EQ(recorders[1].frames.size(), half ? 1u : 2u);
  const bool untouched = std::ranges::all_of(target, [](std::byte b) { return b == std::byte{0x22}; });
  EXPECT_TRUE(untouched || !half) << "written after cancel";
}

// Frames from two peers may have equal operation numbers, because each peer numbers its own messages.
inline void a_placement_of_another_peer_survives_a_cancel(Cluster& cluster) {
  if (cluster.size() < 3) return;
  Recorders recorders(cluster);
  const std::array<Bytes, 3> payloads{pattern(payload_bytes_max, test_seed()), {}, pattern(payload_bytes_max, test_seed() + 1)};
  std::array<Bytes, 3> targets;
  std::array<bool, 3> begun{};
  recorders[1].on_receive_buffer = [&](PeerIndex from, const FrameHeader&) {
    begun[from] = true;
    targets[from].resize(payload_bytes_max);
    return targets[from].data();
  };
  for (const size_t from : {0, 2})
    ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, from, 1, data_header(5, payload_bytes_max), payloads[from], 5));
  const auto has_frame_from = [&](PeerIndex from) {
    return std::ranges::any_of(recorders[1].frames, [&](const auto& frame) { return frame.from == from; });
  };
  ASSERT_TRUE(recorders.until([&] { return (begun[0] || has_frame_from(0)) && (begun[2] || has_frame_from(2)); }));
  cluster.at(1).cancel({.match = 1, .mask = ~uint64_t{0}, .group = 7, .operation = 5, .from = PeerIndex{0}});
  ASSERT_TRUE(recorders.until([&] { return has_frame_from(2); })) << "the frame of peer 2 was cancelled, too";
  for (const auto& frame : recorders[1].frames) EXPECT_TRUE(same(frame.payload, payloads[frame.from]));
}

}  // namespace unisono::conformance

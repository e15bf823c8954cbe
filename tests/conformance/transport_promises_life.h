// Promises about the life of links: their end and their counters.
#pragma once

#include <gtest/gtest.h>

#include "transport_promises_data.h"

namespace unisono::conformance {

inline void a_dead_peer_is_lost_once_with_its_label(Cluster& cluster) {
  Players players(cluster);
  const size_t victim = cluster.size() - 1;
  const auto label = cluster.label(victim);
  cluster.destroy(victim);
  ASSERT_TRUE(players.until([&] {
    for (size_t i = 0; i < victim; ++i) {
      if (players[i].losses.empty()) return false;
    }
    return true;
  }));
  for (int turn = 0; turn < 300; ++turn) players.turn_all();
  for (size_t i = 0; i < victim; ++i) {
    ASSERT_EQ(players[i].losses.size(), 1u);
    ASSERT_EQ(players[i].losses[static_cast<PeerIndex>(victim)].size(), 1u);
    const auto& why = players[i].losses[static_cast<PeerIndex>(victim)][0];
    EXPECT_EQ(why.code(), Code::peer_lost);
    EXPECT_NE(why.message().find(label), std::string::npos) << why.message();
    if (auto* connector = cluster.connector(i)) {
      EXPECT_EQ(connector->state(static_cast<PeerIndex>(victim)), LinkState::lost);
    }
  }
  // The others still work.
  if (victim < 2) return;
  const auto payload = pattern(10'000, test_seed());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, players, 0, 1, data_header(1, payload.size()), payload));
  ASSERT_TRUE(players.until([&] { return players[1].frames.size() == 1; }));
}

inline void sends_to_a_lost_peer_vanish(Cluster& cluster) {
  Players players(cluster);
  cluster.destroy(1);
  ASSERT_TRUE(players.until([&] { return !players[0].losses.empty(); }));
  EXPECT_EQ(cluster.at(0).credit(1), 0u);
  const auto payload = pattern(100'000, test_seed());
  EXPECT_TRUE(cluster.at(0).send(1, data_header(1, payload.size()), payload, 77));
  for (int turn = 0; turn < 100; ++turn) players.turn_all();
  EXPECT_FALSE(players[0].sent_ids.contains(77));
  EXPECT_EQ(players[0].losses[1].size(), 1u);
}

inline void pending_sends_are_reported_before_lost(Cluster& cluster) {
  Players players(cluster);
  const auto payload = pattern(4u << 20, test_seed());
  std::vector<uint64_t> pending;
  for (uint64_t id = 1; id < 30 && cluster.at(0).credit(1) > 0; ++id) {
    if (!cluster.at(0).send(1, data_header(id, payload.size()), payload, id)) pending.push_back(id);
  }
  cluster.destroy(1);
  ASSERT_TRUE(players.until([&] { return !players[0].losses.empty(); }));
  EXPECT_EQ(players[0].sent_when_lost.size(), pending.size());
  for (int turn = 0; turn < 100; ++turn) players.turn_all();
  for (const auto id : pending) EXPECT_EQ(players[0].sent_ids[id], 1) << "sent(" << id << ")";
  EXPECT_EQ(players[0].sent_ids.size(), pending.size());
}

inline void no_upcall_follows_close(Cluster& cluster) {
  Players players(cluster);
  cluster.at(0).close(1);
  ASSERT_TRUE(players.until([&] { return !players[1].losses.empty(); }));
  for (int turn = 0; turn < 300; ++turn) players.turn_all();
  EXPECT_TRUE(players[0].losses.empty());
  EXPECT_EQ(players[1].losses[0].size(), 1u);
  EXPECT_EQ(players[1].losses[0][0].code(), Code::peer_lost);
  EXPECT_EQ(cluster.at(0).credit(1), 0u);
}

inline void frames_sent_before_close_arrive(Cluster& cluster) {
  Players players(cluster);
  const auto payload = pattern(1000, test_seed());
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_GT(cluster.at(0).credit(1), 0u);
    cluster.at(0).send(1, data_header(i, payload.size()), payload, i);
  }
  // Unread frames from the other side must not turn the end into a reset.
  for (uint64_t i = 0; i < 20; ++i) cluster.at(1).send(0, data_header(i, 0), {}, 0);
  cluster.at(0).close(1);
  ASSERT_TRUE(players.until([&] { return !players[1].losses.empty(); }));
  EXPECT_EQ(players[1].frames.size(), 20u);
}

inline void counters_of_both_sides_agree(Cluster& cluster) {
  Players players(cluster);
  const auto payload = pattern(50'000, test_seed());
  const auto before = cluster.at(0).counters();
  for (uint64_t i = 0; i < 30; ++i) {
    ASSERT_NO_FATAL_FAILURE(send_soon(cluster, players, 0, 1, data_header(i, i * 1000), std::span(payload).first(i * 1000), i));
  }
  ASSERT_TRUE(players.until([&] { return players[1].frames.size() == 30; }));
  const auto sender = cluster.at(0).counters(), receiver = cluster.at(1).counters();
  const uint64_t bytes = 30 * sizeof(FrameHeader) + 1000 * 29 * 30 / 2;
  EXPECT_EQ(sender.sent_frames - before.sent_frames, 30u);
  EXPECT_EQ(sender.sent_bytes - before.sent_bytes, bytes);
  EXPECT_EQ(receiver.received_frames, 30u);
  EXPECT_EQ(receiver.received_bytes, bytes);
  for (const auto refused : receiver.refused_frames) EXPECT_EQ(refused, 0u);
}

inline void a_second_link_to_a_peer_is_refused(Cluster& cluster) {
  auto* connector = cluster.connector(0);
  if (connector == nullptr) return;
  Players players(cluster);
  auto request = cluster.request(0, 1);
  EXPECT_EQ(connector->add_peer(request).code(), Code::invalid) << "the same index";
  request.peer = static_cast<PeerIndex>(cluster.size());
  EXPECT_EQ(connector->add_peer(request).code(), Code::invalid) << "the same process under another index";
  const auto payload = pattern(100, test_seed());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, players, 0, 1, data_header(1, payload.size()), payload));
  ASSERT_TRUE(players.until([&] { return players[1].frames.size() == 1; }));
}

inline void every_link_describes_itself(Cluster& cluster) {
  for (size_t i = 0; i < cluster.size(); ++i) {
    for (size_t j = 0; j < cluster.size(); ++j) {
      EXPECT_TRUE(i == j || !cluster.at(i).describe(static_cast<PeerIndex>(j)).empty());
    }
    EXPECT_FALSE(std::string(cluster.at(i).name()).empty());
  }
}

}  // namespace unisono::conformance

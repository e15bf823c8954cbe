// Promises about how links end, and about the counters of links.
#pragma once

#include <gtest/gtest.h>

#include "transport_promises_data.h"

namespace unisono::conformance {

inline void a_dead_peer_is_lost_once_with_its_label(Cluster& cluster) {
  Recorders recorders(cluster);
  const size_t victim = cluster.size() - 1;
  const auto label = cluster.label(victim);
  cluster.destroy(victim);
  ASSERT_TRUE(recorders.until([&] {
    for (size_t i = 0; i < victim; ++i) {
      if (recorders[i].losses.empty()) return false;
    }
    return true;
  }));
  for (int turn = 0; turn < 300; ++turn) recorders.turn_all();
  for (size_t i = 0; i < victim; ++i) {
    ASSERT_EQ(recorders[i].losses.size(), 1u);
    ASSERT_EQ(recorders[i].losses[static_cast<PeerIndex>(victim)].size(), 1u);
    const auto& why = recorders[i].losses[static_cast<PeerIndex>(victim)][0];
    EXPECT_EQ(why.code(), Code::peer_lost);
    EXPECT_EQ(recorders[i].fates[static_cast<PeerIndex>(victim)], PeerFate::ended) << why.message();
    EXPECT_NE(why.message().find(label), std::string::npos) << why.message();
    if (auto* connector = cluster.connector(i)) {
      EXPECT_EQ(connector->state(static_cast<PeerIndex>(victim)), LinkState::lost);
    }
  }
  // The other links still work.
  if (victim < 2) return;
  const auto payload = pattern(10'000, test_seed());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(1, payload.size()), payload));
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == 1; }));
}

inline void sends_to_a_lost_peer_vanish(Cluster& cluster) {
  Recorders recorders(cluster);
  cluster.destroy(1);
  ASSERT_TRUE(recorders.until([&] { return !recorders[0].losses.empty(); }));
  EXPECT_EQ(cluster.at(0).credit(1), 0u);
  const auto payload = pattern(100'000, test_seed());
  EXPECT_TRUE(cluster.at(0).send(1, data_header(1, payload.size()), payload, 77));
  for (int turn = 0; turn < 100; ++turn) recorders.turn_all();
  EXPECT_FALSE(recorders[0].sent_ids.contains(77));
  EXPECT_EQ(recorders[0].losses[1].size(), 1u);
}

inline void pending_sends_are_reported_before_lost(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(4u << 20, test_seed());
  std::vector<uint64_t> pending;
  for (uint64_t id = 1; id < 30 && cluster.at(0).credit(1) > 0; ++id) {
    if (!cluster.at(0).send(1, data_header(id, payload.size()), payload, id)) pending.push_back(id);
  }
  cluster.destroy(1);
  ASSERT_TRUE(recorders.until([&] { return !recorders[0].losses.empty(); }));
  EXPECT_EQ(recorders[0].sent_when_lost.size(), pending.size());
  for (int turn = 0; turn < 100; ++turn) recorders.turn_all();
  for (const auto id : pending) EXPECT_EQ(recorders[0].sent_ids[id], 1) << "sent(" << id << ")";
  EXPECT_EQ(recorders[0].sent_ids.size(), pending.size());
}

inline void no_upcall_follows_close(Cluster& cluster) {
  Recorders recorders(cluster);
  cluster.at(0).close(1);
  ASSERT_TRUE(recorders.until([&] { return !recorders[1].losses.empty(); }));
  for (int turn = 0; turn < 300; ++turn) recorders.turn_all();
  EXPECT_TRUE(recorders[0].losses.empty());
  EXPECT_EQ(recorders[1].losses[0].size(), 1u);
  EXPECT_EQ(recorders[1].losses[0][0].code(), Code::peer_lost);
  EXPECT_EQ(recorders[1].fates[0], PeerFate::ended) << "it has left in order";
  EXPECT_EQ(cluster.at(0).credit(1), 0u);
}

inline void frames_sent_before_close_arrive(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(1000, test_seed());
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_GT(cluster.at(0).credit(1), 0u);
    cluster.at(0).send(1, data_header(i, payload.size()), payload, i);
  }
  // Leave frames from the other side unread. close() must still end the link in an orderly way, without a reset.
  for (uint64_t i = 0; i < 20; ++i) cluster.at(1).send(0, data_header(i, 0), {}, 0);
  cluster.at(0).close(1);
  ASSERT_TRUE(recorders.until([&] { return !recorders[1].losses.empty(); }));
  EXPECT_EQ(recorders[1].frames.size(), 20u);
}

inline void counters_of_both_sides_agree(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(50'000, test_seed());
  const auto before = cluster.at(0).counters();
  for (uint64_t i = 0; i < 30; ++i) {
    ASSERT_NO_FATAL_FAILURE(
        send_soon(cluster, recorders, 0, 1, data_header(i, i * 1000), std::span(payload).first(i * 1000), i));
  }
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == 30; }));
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
  Recorders recorders(cluster);
  auto request = cluster.request(0, 1);
  EXPECT_EQ(connector->add_peer(request).code(), Code::invalid) << "the same index";
  request.peer = static_cast<PeerIndex>(cluster.size());
  EXPECT_EQ(connector->add_peer(request).code(), Code::invalid) << "the same process under another index";
  const auto payload = pattern(100, test_seed());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(1, payload.size()), payload));
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == 1; }));
}

// Exchanges a frame in each direction between the transports 0 and 1.
inline void exchange_frames(Cluster& cluster, Recorders& recorders, uint64_t operation) {
  const auto payload = pattern(1000, test_seed());
  const auto before = std::pair(recorders[0].frames.size(), recorders[1].frames.size());
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 0, 1, data_header(operation, payload.size()), payload));
  ASSERT_NO_FATAL_FAILURE(send_soon(cluster, recorders, 1, 0, data_header(operation, payload.size()), payload));
  ASSERT_TRUE(recorders.until(
      [&] { return recorders[0].frames.size() == before.first + 1 && recorders[1].frames.size() == before.second + 1; }));
}

inline void a_process_that_has_stopped_listening_keeps_its_links_and_dials_new_ones(Cluster& cluster) {
  auto* connector = cluster.connector(0);
  if (connector == nullptr) return;
  Recorders recorders(cluster);
  connector->stop_listening();
  ASSERT_NO_FATAL_FAILURE(exchange_frames(cluster, recorders, 1));
  cluster.at(0).close(1);
  ASSERT_TRUE(recorders.until([&] { return !recorders[1].losses.empty(); }));
  connector->stop_listening();  // once more: with two transports, this one has no links now
  recorders.turn_all();
  ASSERT_TRUE(connector->add_peer(cluster.request(0, 1)).ok());
  ASSERT_TRUE(cluster.connector(1)->add_peer(cluster.request(1, 0)).ok());
  ASSERT_TRUE(
      recorders.until([&] { return connector->state(1) == LinkState::up && cluster.connector(1)->state(0) == LinkState::up; }));
  ASSERT_NO_FATAL_FAILURE(exchange_frames(cluster, recorders, 2));
  connector->stop_listening();  // with a link: its end is still noticed
  const auto before = recorders[0].losses.size();
  cluster.at(1).close(0);
  EXPECT_TRUE(recorders.until([&] { return recorders[0].losses.size() > before; }));
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

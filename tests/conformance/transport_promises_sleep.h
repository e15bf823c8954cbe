// Promises about sleeping: if a process sleeps, an event wakes it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>

#include <poll.h>

#include "transport_promises_data.h"

namespace unisono::conformance {

// Polls until the transport agrees to sleep. Returns false if the transport has no handle on which a process could sleep.
inline bool fall_asleep(Transport& transport, Sink& sink) {
  if (transport.wait_handle() < 0) return false;
  const auto limit = clock_now() + patience;
  while (!transport.arm()) {
    EXPECT_LT(clock_now(), limit) << "never quiet";
    if (clock_now() > limit) return false;
    transport.poll(clock_now(), sink);
  }
  return true;
}

inline int wait_for(Transport& transport, int limit_ms) {
  pollfd handle{transport.wait_handle(), POLLIN, 0};
  return ::poll(&handle, 1, limit_ms);
}

inline void a_sleeper_is_woken_by_a_frame(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(100, test_seed());
  for (uint64_t round = 0; round < 20; ++round) {
    for (int turn = 0; turn < 10; ++turn) recorders.turn_all();
    if (!fall_asleep(cluster.at(1), recorders[1])) return;
    std::thread sender([&] { cluster.at(0).send(1, data_header(round, payload.size()), payload, round); });
    const int woken = wait_for(cluster.at(1), 20'000);
    sender.join();
    ASSERT_EQ(woken, 1) << "slept through frame " << round;
    cluster.at(1).disarm();
    ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == round + 1; }));
  }
}

inline void sleepers_are_woken_by_copies(Cluster& cluster) {
  if (cluster.at(0).slot_bytes() == 0) return;
  Recorders recorders(cluster);
  std::vector<PeerIndex> others(cluster.size() - 1);
  std::iota(others.begin(), others.end(), PeerIndex{1});
  for (uint64_t round = 0; round < 20; ++round) {
    const auto payload = pattern(round % 2 == 0 ? 100 : 0, test_seed());
    for (int turn = 0; turn < 10; ++turn) recorders.turn_all();
    for (const auto peer : others) {
      if (!fall_asleep(cluster.at(peer), recorders[peer])) return;
    }
    std::thread sender(
        [&] { EXPECT_TRUE(cluster.at(0).send_copies(others, data_header(round, payload.size()), payload.data())); });
    for (const auto peer : others) EXPECT_EQ(wait_for(cluster.at(peer), 20'000), 1) << peer << " slept through frame " << round;
    sender.join();
    for (const auto peer : others) {
      cluster.at(peer).disarm();
      ASSERT_TRUE(recorders.until([&] { return recorders[peer].frames.size() == round + 1; }));
    }
  }
}

// take_next() frees slots, as poll() does. Therefore it must wake a sender that waits for slots.
inline void a_sleeper_is_woken_when_frames_are_taken(Cluster& cluster) {
  if (!cluster.at(1).looks_ahead() || cluster.at(0).slot_bytes() == 0) return;
  Recorders recorders(cluster);
  const auto payload = pattern(100, test_seed());
  const PeerIndex to[] = {1}, from[] = {0};
  uint64_t sent = 0, taken = 0;
  for (int round = 0; round < 5; ++round) {
    while (sent < 100'000 && cluster.at(0).send_copies(to, data_header(sent, payload.size()), payload.data())) ++sent;
    ASSERT_LT(sent, 100'000u) << "the credit has no end";
    recorders.turn(0);
    if (!fall_asleep(cluster.at(0), recorders[0])) return;
    std::thread receiver([&] {
      const std::byte* found = nullptr;
      for (; taken < sent; ++taken) {
        ASSERT_EQ(cluster.at(1).next(0, data_header(taken, payload.size()), found), Next::expected) << taken;
        ASSERT_TRUE(same({found, payload.size()}, payload));
        cluster.at(1).take_next(from);
      }
    });
    EXPECT_EQ(wait_for(cluster.at(0), 20'000), 1) << "slept although there was credit, round " << round;
    receiver.join();
    cluster.at(0).disarm();
    recorders[0].credits.clear();
    recorders.turn(0);
    EXPECT_GT(recorders[0].credits[1], 0);
  }
}

inline void a_sleeper_is_woken_by_credit(Cluster& cluster) {
  Recorders recorders(cluster);
  const auto payload = pattern(1u << 20, test_seed());
  // Repeat this until nothing moves any more, because in each turn the kernel may accept more data.
  uint64_t id = 0;
  for (int quiet = 0; quiet < 10 && id < 2000; ++quiet) {
    for (; id < 2000 && cluster.at(0).credit(1) > 0; ++id, quiet = 0)
      cluster.at(0).send(1, data_header(id, payload.size()), payload, id);
    recorders.turn(0);
  }
  while (id < 2000 && cluster.at(0).credit(1) > 0) {
    cluster.at(0).send(1, data_header(id, payload.size()), payload, id);
    ++id;
  }
  ASSERT_EQ(cluster.at(0).credit(1), 0u) << "the credit has no end";
  recorders[0].credits.clear();
  std::atomic<bool> stop = false;
  std::thread receiver([&] {
    while (!stop) recorders.turn(1);
  });
  const auto limit = clock_now() + patience;
  while (recorders[0].credits[1] == 0 && clock_now() < limit) {
    if (cluster.at(0).wait_handle() >= 0 && cluster.at(0).arm()) {
      EXPECT_EQ(wait_for(cluster.at(0), 20'000), 1) << "slept although there was credit";
      cluster.at(0).disarm();
    }
    recorders.turn(0);
  }
  stop = true;
  receiver.join();
  EXPECT_GT(recorders[0].credits[1], 0);
  for (const size_t i : {0, 1}) {
    for (const auto& [peer, whys] : recorders[i].losses) ADD_FAILURE() << i << " lost " << peer << ": " << whys[0].to_string();
  }
  cluster.at(0).close(1);  // Close the link first, because sends that are not complete still use `payload`.
}

inline void a_waiting_frame_prevents_sleep(Cluster& cluster) {
  Recorders recorders(cluster);
  for (int turn = 0; turn < 10; ++turn) recorders.turn_all();
  if (!fall_asleep(cluster.at(1), recorders[1])) return;
  cluster.at(1).disarm();
  const auto payload = pattern(100, test_seed());
  cluster.at(0).send(1, data_header(1, payload.size()), payload, 1);
  for (int turn = 0; turn < 10; ++turn) recorders.turn(0);
  if (cluster.at(1).arm()) {
    EXPECT_EQ(wait_for(cluster.at(1), 20'000), 1);
    cluster.at(1).disarm();
  }
  ASSERT_TRUE(recorders.until([&] { return recorders[1].frames.size() == 1; }));
}

}  // namespace unisono::conformance

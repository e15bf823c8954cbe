// Tests the virtual links without an engine: their timing, their order, and the rules of Transport for both sides.
#include "sim/network.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/concat.h"
#include "sim/sim_transport.h"

namespace unisono::sim {
namespace {

// Records its events. Has a receive buffer for payloads if the test sets one.
class Listener final : public Sink {
 public:
  std::byte* receive_buffer(PeerIndex, const FrameHeader&) override { return buffer_; }
  void received(PeerIndex from, const FrameHeader& header, const View& view) override {
    log += concat("frame ", header.operation, " from ", from, "; ");
    views.push_back(view);
  }
  void sent(uint64_t id) override { log += concat("sent ", id, "; "); }
  void lost(PeerIndex peer, const Status& why, PeerFate) override { log += concat("lost ", peer, ": ", why.message(), "; "); }
  void credit(PeerIndex peer) override { log += concat("credit ", peer, "; "); }

  void receive_into(std::byte* buffer) { buffer_ = buffer; }
  std::string log;
  std::vector<View> views;

 private:
  std::byte* buffer_ = nullptr;
};

class World {
 public:
  explicit World(NetworkSettings settings) : network_(settings, 3, 1, event_queue_, trace_) {
    for (PeerIndex p = 0; p < 3; ++p) transports_.emplace_back(network_, p);
  }
  // Processes events up to time `until`, and polls each process that has events.
  void run(Nanos until = second) {
    constexpr int events_max = 10'000;
    int events = 0;
    while (!event_queue_.empty() && event_queue_.next_at() <= until) {
      if (++events > events_max)
        return ADD_FAILURE() << "more than " << events_max << " events, the last at " << event_queue_.now() << " ns", void();
      step();
    }
  }
  // Processes the next event, if there is one.
  void step() {
    if (event_queue_.empty()) return;
    const auto event = event_queue_.pop();
    if (event.kind == EventKind::arrive) network_.arrive(event.index);
    if (event.kind == EventKind::credit) network_.credit_again(event.rank);
    if (event.kind == EventKind::lose) network_.lose(event.index);
    if (event.kind == EventKind::poll && event_queue_.take_poll(event)) (void)network_.poll(event.rank, listeners_[event.rank]);
  }
  bool send(PeerIndex from, PeerIndex to, uint64_t operation, std::span<const std::byte> payload = {}) {
    FrameHeader header;
    header.operation = operation;
    return transports_[from].send(to, header, payload, operation);
  }
  Network& network() { return network_; }
  SimTransport& at(PeerIndex p) { return transports_[p]; }
  Listener& listener(PeerIndex p) { return listeners_[p]; }
  Nanos now() const { return event_queue_.now(); }

 private:
  EventQueue event_queue_{3};
  Trace trace_;
  Network network_;
  std::vector<SimTransport> transports_;
  Listener listeners_[3];
};

const std::vector<std::byte> payload(1000, std::byte{9});

TEST(SimNetwork, a_frame_takes_its_time_on_the_wire_and_the_latency) {
  World world({.latency = 10 * microsecond, .bytes_per_us = 100});
  EXPECT_TRUE(world.send(0, 1, 5, payload));
  world.run();
  EXPECT_EQ(world.listener(1).log, "frame 5 from 0; ");
  // 1064 bytes take 10,640 ns to leave one process and as long to enter the other
  EXPECT_EQ(world.now(), 10 * microsecond + 2 * 10'640);
}

TEST(SimNetwork, lost_packets_cost_retransmissions_and_in_the_end_the_link) {
  World world({.loss = 1, .retransmit = millisecond, .retransmits_max = 3});
  world.send(0, 1, 5, payload);
  world.run();
  EXPECT_EQ(world.listener(0).log, "lost 1: process 1: no acknowledgement after 3 retransmissions; ");
  EXPECT_EQ(world.listener(1).log, "lost 0: process 0: no acknowledgement after 3 retransmissions; ");
  EXPECT_GT(world.now(), 7 * millisecond);
  EXPECT_EQ(world.at(0).credit(1), 0u);
  EXPECT_TRUE(world.send(0, 1, 6, payload)) << "goes to no process, but is accepted";
}

TEST(SimNetwork, exhausted_credit_is_announced_when_it_returns) {
  World world({.queue_frames_max = 2});
  EXPECT_EQ(world.at(0).credit(1), 2u);
  world.send(0, 1, 1, payload);
  world.send(0, 1, 2, payload);
  EXPECT_EQ(world.at(0).credit(1), 0u);
  EXPECT_EQ(world.at(0).credit(2), 2u);
  world.run();
  EXPECT_EQ(world.listener(0).log, "credit 1; ");
  EXPECT_TRUE(world.network().violations().empty());
  for (uint64_t i = 3; i < 6; ++i) world.send(0, 1, i, payload);
  EXPECT_EQ(world.network().violations().size(), 1u) << "the third one had no credit";
}

TEST(SimNetwork, pending_sends_end_before_the_link_is_reported_lost) {
  World world({.copy = 0});
  EXPECT_FALSE(world.send(0, 1, 7, payload));
  world.network().kill(1);
  world.network().cut(0, 1, millisecond, never, "it died");
  world.run();
  EXPECT_EQ(world.listener(0).log, "sent 7; lost 1: process 1: it died; ");
  EXPECT_EQ(world.network().held_by(0), "");
}

TEST(SimNetwork, a_payload_changed_before_sent_is_a_violation) {
  World world({.copy = 0});
  auto mine = payload;
  EXPECT_FALSE(world.send(0, 1, 7, mine));
  mine[500] = std::byte{1};
  world.run();
  ASSERT_FALSE(world.network().violations().empty());
  EXPECT_NE(world.network().violations()[0].find("changed a payload"), std::string::npos);
}

TEST(SimNetwork, a_cancelled_send_arrives_whole_and_is_not_reported) {
  World world({.copy = 0});
  auto mine = payload;
  world.send(0, 1, 7, mine);
  world.at(0).cancel({.match = 7, .mask = UINT64_MAX, .operation = 7});
  mine.assign(mine.size(), std::byte{1});
  world.run();
  EXPECT_EQ(world.listener(0).log, "");
  ASSERT_EQ(world.listener(1).views.size(), 1u);
  EXPECT_EQ(std::memcmp(world.listener(1).views[0].data, payload.data(), payload.size()), 0);
  EXPECT_TRUE(world.network().violations().empty());
}

TEST(SimNetwork, a_payload_is_written_in_two_parts_and_not_at_all_after_cancel) {
  for (const bool cancelled : {false, true}) {
    World world({.split = 1, .wake_max = 100 * microsecond});
    std::vector<std::byte> buffer(payload.size());
    world.listener(1).receive_into(buffer.data());
    world.send(0, 1, 7, payload);
    for (int events = 0; events < 10 && world.network().held_by(1).empty(); ++events) world.step();
    EXPECT_EQ(world.network().held_by(1), "0 views, 1 writes to receive buffers, 0 sends, 0 slots");
    EXPECT_EQ(world.listener(1).log, "");
    const auto first_part_at = world.now();
    if (cancelled) world.at(1).cancel({.operation = 7});
    for (int events = 0; events < 10 && world.listener(1).log.empty(); ++events) world.step();
    EXPECT_GT(world.now(), first_part_at + 1) << "the second part has to wait for a separate poll";
    world.run();
    EXPECT_EQ(world.listener(1).log, cancelled ? "" : "frame 7 from 0; ");
    EXPECT_EQ(buffer == payload, !cancelled);
    EXPECT_EQ(world.network().held_by(1), "");
  }
}

TEST(SimNetwork, views_last_until_they_are_released_once) {
  World world({.view_chance = 1});
  world.send(0, 1, 7, payload);
  world.run();
  ASSERT_EQ(world.listener(1).views.size(), 1u);
  EXPECT_EQ(world.network().held_by(1), "1 views, 0 writes to receive buffers, 0 sends, 0 slots");
  world.at(1).release(world.listener(1).views[0]);
  EXPECT_EQ(world.network().held_by(1), "");
  EXPECT_TRUE(world.network().violations().empty());
  world.at(1).release(world.listener(1).views[0]);
  EXPECT_EQ(world.network().violations().size(), 1u);
}

TEST(SimNetwork, a_slot_reaches_all_its_peers_and_is_freed_when_all_have_read_it) {
  World world({.views_use_queue = true, .slots = 2, .result_slots = 1, .view_chance = 1});
  const PeerIndex both[] = {1, 2};
  const auto slot = world.at(0).acquire(both, 100, false);
  ASSERT_TRUE(slot);
  EXPECT_FALSE(world.at(0).acquire(both, 100, false)) << "the last one is for results";
  EXPECT_TRUE(world.at(0).acquire(both, 100, true));
  FrameHeader header;
  header.operation = 3;
  header.payload_bytes = 100;
  world.at(0).commit(slot, header);
  world.run();
  EXPECT_EQ(world.listener(1).log + world.listener(2).log, "frame 3 from 0; frame 3 from 0; ");
  EXPECT_EQ(world.network().held_by(0), "0 views, 0 writes to receive buffers, 0 sends, 2 slots");
  for (const PeerIndex p : both) world.at(p).release(world.listener(p).views[0]);
  world.run();
  EXPECT_EQ(world.network().held_by(0), "0 views, 0 writes to receive buffers, 0 sends, 1 slots");
  EXPECT_NE(world.listener(0).log.find("credit 1"), std::string::npos);
}

TEST(SimNetwork, a_partition_delays_until_it_heals) {
  World world({});
  world.network().partition({false, true, false}, 5 * millisecond);
  world.send(0, 1, 1, payload);
  world.send(0, 2, 2, payload);
  world.run(millisecond);
  EXPECT_EQ(world.listener(1).log, "");
  EXPECT_EQ(world.listener(2).log, "frame 2 from 0; ");
  world.run();
  EXPECT_EQ(world.listener(1).log, "frame 1 from 0; ");
  EXPECT_GE(world.now(), 5 * millisecond);
}

}  // namespace
}  // namespace unisono::sim

// For tests: a peer that completes the handshake and then misbehaves. Its victim also has a well-behaved peer.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>

#include <string>

#include "transports/shm/shm_handshake.h"
#include "transports/shm/shm_ring.h"
#include "transports/shm/shm_test_support.h"

namespace unisono::shm {

inline constexpr PeerIndex fake_index = 9;

// Completes the handshake with the victim. After that, the test writes whatever it wants into the fake peer's arena. The victim
// knows the fake peer as peer 9.
struct FakePeer {
  explicit FakePeer(TestNode& node) : victim(node) {
    hello.key = test_key();
    hello.from = fresh_id();
    hello.to = node.id;
    hello.geometry = {.regions = 4,
                      .ring_cells = 512,
                      .release_entries = 256,
                      .small_slots = 64,
                      .small_bytes = 4096,
                      .large_slots = 64,
                      .large_bytes = 1 << 20,
                      .piece_bytes = 128 << 10};
    hello.region = 2;
    arena = std::move(Arena::make(hello.geometry)).value();
  }
  void expect_me(Nanos wait = 10 * second) {
    const std::string endpoint = victim.transport->endpoints()[0];
    const LinkRequest request{.peer = fake_index,
                              .id = hello.from,
                              .label = "the fake",
                              .endpoints = {endpoint.substr(0, endpoint.rfind('/') + 1) + "nowhere"},
                              .dial = false,
                              .deadline = test_now() + wait};
    ASSERT_TRUE(victim.transport->add_peer(request).ok());
  }
  std::string victims_name() const {
    const std::string endpoint = victim.transport->endpoints()[0];
    return endpoint.substr(endpoint.rfind('/') + 1);
  }
  void call() { socket = std::move(dial(victims_name()).value()); }
  void greet() {
    seal_hello(hello);
    ASSERT_TRUE(send_hello(socket.get(), hello, arena.memfd()).ok());
  }
  void come_up() {
    expect_me();
    call();
    greet();
    ASSERT_TRUE(run_until({&victim}, [&] { return victim.transport->state(fake_index) == LinkState::up; }));
    writer = RingWriter(arena.cells(2), 512, &head_of_victim);
    releases = ReleaseWriter(arena.releases(2), 256);
  }
  // Waits until the victim has answered and closed the connection. Returns the victim's reason for the refusal.
  Refusal refusal() {
    Arrival answer;
    answer.socket = UniqueFd(::fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
    Refusal malformed = Refusal::none;
    HelloState state = HelloState::waiting;
    run_until({&victim}, [&] { return (state = receive_hello(answer, malformed)) != HelloState::waiting; });
    return state == HelloState::refused ? answer.hello.refusal : Refusal::none;
  }

  TestNode& victim;
  Hello hello;
  Arena arena;
  UniqueFd socket;
  // the victim's read position as `writer` sees it; it is always 0, because no test fills the ring
  std::atomic<uint32_t> head_of_victim{0};
  RingWriter writer;
  ReleaseWriter releases;
};

struct Attack {
  Attack() {
    connect(victim, 0, friend_node, 1);
    fake.come_up();
  }
  // Expects that the victim ends its link to the fake peer as corrupt, and that the victim's other link still works.
  void expect_corrupt(FrameFault counted = FrameFault::none) {
    ASSERT_TRUE(run_until({&victim}, [&] { return victim.losses.count(fake_index) == 1; }));
    EXPECT_EQ(victim.losses[fake_index].code(), Code::corrupt) << victim.losses[fake_index].to_string();
    EXPECT_NE(victim.losses[fake_index].message().find("the fake"), std::string::npos);
    EXPECT_EQ(victim.fates[fake_index], PeerFate::unknown) << "it may live";
    EXPECT_EQ(victim.transport->counters().refused_frames[static_cast<int>(counted)], counted == FrameFault::none ? 0u : 1u);
    expect_friend_works();
  }
  void expect_friend_works() {
    const Bytes payload = pattern(300'000, 1);
    const size_t before = friend_node.arrived.size();
    victim.transport->send(1, data_header(1), payload, 1);
    EXPECT_TRUE(run_until({&victim, &friend_node}, [&] { return friend_node.arrived.size() == before + 1; }));
    EXPECT_EQ(victim.losses.count(1), 0u);
  }
  void push(const FrameHeader& header, CellType type, uint32_t ref) { fake.writer.push(header, type, ref); }

  TestNode victim;
  TestNode friend_node;
  FakePeer fake{victim};
};

}  // namespace unisono::shm

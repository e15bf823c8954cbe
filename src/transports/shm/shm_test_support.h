// For tests of the shared-memory transport: a transport with a sink that records upcalls. Several may run in one process.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/concat.h"
#include "base/random.h"
#include "transports/shm/shm_transport.h"

namespace unisono::shm {

inline Nanos test_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline Bytes pattern(size_t bytes, uint64_t seed) {
  Bytes data(bytes);
  Random random(seed);
  size_t at = 0;
  for (; at + 8 <= bytes; at += 8) {
    const uint64_t word = random.next();
    std::memcpy(data.data() + at, &word, 8);
  }
  for (; at < bytes; ++at) data[at] = static_cast<std::byte>(random.next());
  return data;
}

inline JobKey test_key(uint8_t value = 7) {
  JobKey key;
  key.fill(static_cast<std::byte>(value));
  return key;
}

// Returns an id that differs for every test process and every call, so that parallel test runs do not collide.
PeerId fresh_id();

struct Arrived {
  PeerIndex from = 0;
  FrameHeader header;
  Bytes payload;
  bool views_out = false;
};

class TestNode : public Sink {
 public:
  explicit TestNode(ShmOptions options = {}) {
    if (options.self == PeerId{}) options.self = fresh_id();
    id = options.self;
    auto made = ShmTransport::make(options);
    if (!made) ADD_FAILURE() << made.status().to_string();
    else transport = std::move(*made);
    transport->set_job(test_key());
  }

  std::byte* receive_buffer(PeerIndex from, const FrameHeader& header) override {
    ++buffer_requests;
    return on_receive_buffer ? on_receive_buffer(from, header) : nullptr;
  }
  void received(PeerIndex from, const FrameHeader& header, const View& view) override {
    auto sealed = header;  // shared memory leaves header_checksum 0, so it is computed here
    seal_frame(sealed);
    EXPECT_EQ(check_frame(sealed), FrameFault::none);
    EXPECT_EQ(view.bytes, header.payload_bytes);
    ++received_count;
    if (keep_payloads) arrived.push_back({from, header, Bytes(view.data, view.data + view.bytes), view.handle != 0});
    if (on_received) on_received(from, header, view);
    if (view.handle == 0) return;
    if (keep_views) views.push_back(view);
    else transport->release(view);
  }
  bool has_enough() const override { return enough; }
  void sent(uint64_t send_id) override { sent_ids.push_back(send_id); }
  void lost(PeerIndex peer, const Status& why, PeerFate fate) override {
    EXPECT_EQ(losses.count(peer), 0u) << "lost twice";
    losses[peer] = why;
    fates[peer] = fate;
  }
  void credit(PeerIndex peer) override {
    credits.push_back(peer);
    if (on_credit) on_credit(peer);
  }
  bool poll() { return transport->poll(test_now(), *this); }

  PeerId id;
  std::unique_ptr<ShmTransport> transport;
  std::function<std::byte*(PeerIndex, const FrameHeader&)> on_receive_buffer;
  std::function<void(PeerIndex, const FrameHeader&, const View&)> on_received;
  std::function<void(PeerIndex)> on_credit;
  bool keep_views = false;
  bool enough = false;  // returned by has_enough(); true: the sink wants no more frames for now
  bool keep_payloads = true;
  int buffer_requests = 0;
  uint64_t received_count = 0;
  std::vector<Arrived> arrived;
  std::vector<View> views;
  std::vector<uint64_t> sent_ids;
  std::vector<PeerIndex> credits;
  std::map<PeerIndex, Status> losses;
  std::map<PeerIndex, PeerFate> fates;
};

// Polls all nodes until done() is true. Returns false if done() is still false after `limit`.
inline bool run_until(const std::vector<TestNode*>& nodes, const std::function<bool()>& done, Nanos limit = 20 * second) {
  const Nanos end = test_now() + limit;
  while (!done()) {
    if (test_now() > end) return false;
    for (TestNode* node : nodes) {
      if (node != nullptr && node->transport) node->poll();
    }
  }
  return true;
}

inline LinkRequest request_for(PeerIndex peer, const TestNode& other, bool dial) {
  return {.peer = peer,
          .id = other.id,
          .label = concat("peer ", peer),
          .endpoints = other.transport->endpoints(),
          .dial = dial,
          .deadline = test_now() + 10 * second};
}

// Links `a` and `b`: `a` knows `b` as peer b_index, and `b` knows `a` as peer a_index.
inline void connect(TestNode& a, PeerIndex a_index, TestNode& b, PeerIndex b_index) {
  ASSERT_TRUE(a.transport->add_peer(request_for(b_index, b, true)).ok());
  ASSERT_TRUE(b.transport->add_peer(request_for(a_index, a, false)).ok());
  ASSERT_TRUE(run_until({&a, &b}, [&] {
    return a.transport->state(b_index) == LinkState::up && b.transport->state(a_index) == LinkState::up;
  })) << (a.losses.empty() ? "" : a.losses.begin()->second.to_string());
}

// Links all nodes with each other. Each node knows the others by their index in the list.
inline void connect_all(const std::vector<TestNode*>& nodes) {
  for (PeerIndex i = 0; i < nodes.size(); ++i) {
    for (PeerIndex j = 0; j < i; ++j) connect(*nodes[i], i, *nodes[j], j);
  }
}

inline FrameHeader data_header(uint64_t operation, uint32_t payload_bytes = 0) {
  FrameHeader header;
  header.operation = operation;
  header.payload_bytes = payload_bytes;
  return header;
}

inline PeerId fresh_id() {
  static uint64_t counter = 0;
  ++counter;
  return {.low = mix64(static_cast<uint64_t>(test_now()) + counter),
          .high = mix64(counter ^ reinterpret_cast<uint64_t>(&counter))};
}

}  // namespace unisono::shm

#include "transports/shm/shm_transport.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <set>
#include <thread>

#include "base/concat.h"
#include "transports/shm/shm_test_support.h"

namespace unisono::shm {
namespace {

constexpr size_t sizes[] = {0,       1, 63, 1 << 10, 4096, 4097, 64 << 10, 128 << 10, (128 << 10) + 1, 1 << 20, (1 << 20) + 1,
                            16 << 20};

struct Pair {
  Pair() { connect(a, 0, b, 1); }
  TestNode a;
  TestNode b;
};

bool readable(int fd, int timeout_ms) {
  pollfd entry{.fd = fd, .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST(ShmTransport, payloads_of_every_size_arrive_intact_as_views) {
  Pair pair;
  uint64_t id = 0;
  for (const size_t size : sizes) {
    SCOPED_TRACE(size);
    const Bytes payload = pattern(size, size + 1);
    pair.b.arrived.clear();
    ++id;
    const bool at_once = pair.a.transport->send(1, data_header(id), payload, id);
    ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == 1; }));
    ASSERT_TRUE(run_until({&pair.a}, [&] { return at_once || (!pair.a.sent_ids.empty() && pair.a.sent_ids.back() == id); }));
    EXPECT_EQ(pair.b.arrived[0].header.operation, id);
    EXPECT_EQ(pair.b.arrived[0].views_out, size > 0);
    EXPECT_TRUE(pair.b.arrived[0].payload == payload);
  }
}

TEST(ShmTransport, payloads_larger_than_a_slot_land_in_the_receive_buffer) {
  Pair pair;
  for (const size_t size : {(size_t{1} << 20) + 1, size_t{2} << 20, size_t{16} << 20}) {
    SCOPED_TRACE(size);
    const Bytes payload = pattern(size + 3, size);
    Bytes target(size + 1);
    pair.b.arrived.clear();
    pair.b.on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return target.data() + 1; };
    pair.a.transport->send(1, data_header(size), std::span(payload).subspan(3), 1);
    ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == 1; }));
    EXPECT_FALSE(pair.b.arrived[0].views_out);
    EXPECT_TRUE(std::equal(target.begin() + 1, target.end(), payload.begin() + 3));
  }
  EXPECT_EQ(pair.b.buffer_requests, 3);
}

TEST(ShmTransport, a_committed_slot_is_read_where_it_was_written) {
  Pair pair;
  pair.b.keep_views = true;
  const PeerIndex to[] = {1};
  const Slot slot = pair.a.transport->acquire(to, 100'000, false);
  ASSERT_TRUE(slot);
  ASSERT_GE(slot.capacity, 100'000u);
  const Bytes payload = pattern(100'000, 5);
  std::memcpy(slot.data, payload.data(), payload.size());
  pair.a.transport->commit(slot, data_header(1, 100'000));
  ASSERT_TRUE(run_until({&pair.b}, [&] { return pair.b.views.size() == 1; }));
  EXPECT_EQ(std::memcmp(pair.b.views[0].data, payload.data(), payload.size()), 0);
  // changes a committed slot, against the rules of Transport, to show that nothing was copied
  slot.data[0] = static_cast<std::byte>(~static_cast<uint8_t>(payload[0]));
  EXPECT_EQ(pair.b.views[0].data[0], slot.data[0]);
  pair.b.transport->release(pair.b.views[0]);
}

TEST(ShmTransport, a_slot_committed_to_several_peers_is_free_when_all_have_released_it) {
  TestNode nodes[4];
  connect_all({&nodes[0], &nodes[1], &nodes[2], &nodes[3]});
  const PeerIndex to[] = {1, 2, 3};
  for (int i = 1; i < 4; ++i) nodes[i].keep_views = true;
  std::set<std::byte*> seen;
  int count = 0;
  while (const Slot slot = nodes[0].transport->acquire(to, 8192, true)) {
    EXPECT_TRUE(seen.insert(slot.data).second);
    std::memset(slot.data, ++count, 8192);
    nodes[0].transport->commit(slot, data_header(1, 8192));
  }
  EXPECT_EQ(count, 16);
  ASSERT_TRUE(run_until({&nodes[1], &nodes[2], &nodes[3]}, [&] {
    return nodes[1].views.size() == 16 && nodes[2].views.size() == 16 && nodes[3].views.size() == 16;
  }));
  const View kept = nodes[2].views[5];
  for (int i : {1, 3}) {
    for (const View& view : nodes[i].views) nodes[i].transport->release(view);
  }
  EXPECT_FALSE(nodes[0].transport->acquire(to, 8192, true)) << "peer 2 holds all of its quota";
  nodes[2].transport->release(kept);
  const Slot again = nodes[0].transport->acquire(to, 8192, true);
  ASSERT_TRUE(again);
  EXPECT_EQ(std::memcmp(kept.data, nodes[2].arrived[5].payload.data(), 8192), 0) << "not written yet";
  nodes[0].transport->abandon(again);
}

TEST(ShmTransport, payloads_of_any_size_reuse_a_mebibyte_of_slots) {
  Pair pair;
  const PeerIndex to[] = {1};
  const auto in_turn = [&](uint32_t bytes) {
    std::set<std::byte*> used;
    for (int i = 0; i < 400; ++i) {
      const Slot slot = pair.a.transport->acquire(to, bytes, false);
      if (!slot) return size_t{0};
      if (i >= 300) used.insert(slot.data);
      std::memset(slot.data, i, bytes);
      pair.a.transport->commit(slot, data_header(1, bytes));
      if (!run_until({&pair.b}, [&, have = pair.b.received_count] { return pair.b.received_count > have; })) return size_t{0};
    }
    return used.size();
  };
  pair.b.keep_payloads = false;
  EXPECT_EQ(in_turn(64 << 10), 16u);
  EXPECT_EQ(in_turn(256 << 10), 4u);
  EXPECT_EQ(in_turn(128 << 10), 8u);
}

TEST(ShmTransport, contributions_block_neither_results_nor_other_peers) {
  TestNode nodes[3];
  connect_all({&nodes[0], &nodes[1], &nodes[2]});
  nodes[1].keep_views = true;
  const PeerIndex one[] = {1};
  const PeerIndex two[] = {2};
  const PeerIndex both[] = {1, 2};
  while (const Slot slot = nodes[0].transport->acquire(one, 65536, false))
    nodes[0].transport->commit(slot, data_header(1, 65536));
  run_until({&nodes[1]}, [&] { return nodes[1].views.size() == 16; });
  EXPECT_EQ(nodes[0].transport->credit(1), 0u);
  EXPECT_GT(nodes[0].transport->credit(2), 0u);
  const Slot other = nodes[0].transport->acquire(two, 65536, false);
  const Slot result = nodes[0].transport->acquire(both, 65536, true);
  EXPECT_TRUE(other);
  EXPECT_TRUE(result);
  nodes[0].transport->abandon(other);
  nodes[0].transport->abandon(result);
  // Peer 1 has no credit, but a send to it still succeeds: in pieces, through slots reserved for results. Peer 1 copies the
  // pieces out, so the views that it holds do not block the send.
  const Bytes payload = pattern(200'000, 3);
  EXPECT_TRUE(nodes[0].transport->send(1, data_header(9), payload, 1));
  ASSERT_TRUE(run_until({&nodes[1]}, [&] { return nodes[1].arrived.size() == 17; }));
  EXPECT_TRUE(nodes[1].arrived[16].payload == payload);
}

TEST(ShmTransport, credit_returns_when_a_refused_slot_is_free_again) {
  Pair pair;
  pair.b.keep_views = true;
  const PeerIndex to[] = {1};
  pair.a.credits.clear();
  while (const Slot slot = pair.a.transport->acquire(to, 65536, true)) pair.a.transport->commit(slot, data_header(1, 65536));
  ASSERT_TRUE(run_until({&pair.b}, [&] { return pair.b.views.size() == 16; }));
  for (int i = 0; i < 100; ++i) pair.a.poll();
  EXPECT_TRUE(pair.a.credits.empty());
  pair.b.transport->release(pair.b.views[3]);
  ASSERT_TRUE(run_until({&pair.a}, [&] { return !pair.a.credits.empty(); }));
  EXPECT_EQ(pair.a.credits.size(), 1u);
  EXPECT_TRUE(pair.a.transport->acquire(to, 65536, true));
}

TEST(ShmTransport, frames_arrive_once_in_any_order_of_releases) {
  const uint64_t seed = 20;
  SCOPED_TRACE(concat("seed ", seed));
  Random random(seed);
  Pair pair;
  pair.b.keep_views = true;
  std::map<uint64_t, Bytes> payloads;
  uint64_t next = 0;
  const uint64_t total = 1000;
  size_t checked = 0;
  ASSERT_TRUE(run_until(
      {&pair.a, &pair.b},
      [&] {
        while (next < total && pair.a.transport->credit(1) > 0 && random.chance(0.9)) {
          const uint64_t kind = random.below(10);
          const size_t size = kind < 5 ? random.below(4000) : kind < 9 ? random.below(300'000) : random.below(4 << 20);
          const uint64_t id = ++next;
          payloads[id] = pattern(size, id);
          pair.a.transport->send(1, data_header(id), payloads[id], id);
        }
        for (; checked < pair.b.arrived.size(); ++checked) {
          Arrived& frame = pair.b.arrived[checked];
          const auto expected = payloads.find(frame.header.operation);
          EXPECT_TRUE(expected != payloads.end() && expected->second == frame.payload) << frame.header.operation;
          if (expected != payloads.end()) payloads.erase(expected);
          frame.payload = {};
        }
        while (!pair.b.views.empty() && random.chance(0.7)) {
          const size_t pick = random.below(pair.b.views.size());
          pair.b.transport->release(pair.b.views[pick]);
          pair.b.views.erase(pair.b.views.begin() + static_cast<long>(pick));
        }
        return checked == total || pair.a.losses.count(1) || pair.b.losses.count(0);
      },
      100 * second));
  EXPECT_TRUE(payloads.empty());
  EXPECT_EQ(pair.a.transport->counters().sent_frames, total);
  EXPECT_EQ(pair.b.transport->counters().received_bytes, pair.a.transport->counters().sent_bytes);
}

TEST(ShmTransport, frames_without_payload_are_always_accepted) {
  Pair pair;
  for (uint64_t i = 0; i < 5000; ++i) EXPECT_TRUE(pair.a.transport->send(1, data_header(i), {}, i));
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == 5000; }));
  for (uint64_t i = 0; i < 5000; ++i) ASSERT_EQ(pair.b.arrived[i].header.operation, i);
}

TEST(ShmTransport, a_cancelled_send_no_longer_reads_the_payload) {
  Pair pair;
  Bytes payload = pattern(16 << 20, 1);
  const Bytes original = payload;
  ASSERT_FALSE(pair.a.transport->send(1, data_header(1), payload, 77));  // some pieces have been sent
  ASSERT_FALSE(pair.a.transport->send(1, data_header(2), payload, 78));  // nothing has been sent
  pair.a.transport->cancel({.operation = 99});
  std::fill(payload.begin(), payload.end(), std::byte{0xEE});
  pair.a.transport->send(1, data_header(3), std::span(payload).first(10), 79);
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == 2; }));
  EXPECT_TRUE(pair.b.arrived[0].payload == original) << "what had begun arrives whole";
  EXPECT_EQ(pair.b.arrived[1].header.operation, 3u);
  for (int i = 0; i < 100; ++i) pair.a.poll();
  EXPECT_TRUE(std::ranges::count(pair.a.sent_ids, 77) + std::ranges::count(pair.a.sent_ids, 78) == 0);
}

TEST(ShmTransport, a_cancelled_receive_buffer_is_not_written_and_the_link_stays_up) {
  Pair pair;
  const Bytes payload = pattern(8 << 20, 1);
  Bytes target(8 << 20);
  pair.b.on_receive_buffer = [&](PeerIndex, const FrameHeader& header) {
    return header.operation == 1 ? target.data() : nullptr;
  };
  ASSERT_FALSE(pair.a.transport->send(1, data_header(1), payload, 1));
  pair.b.poll();
  ASSERT_EQ(pair.b.buffer_requests, 1);
  pair.b.transport->cancel({.match = 1, .mask = ~uint64_t{0}, .operation = 1});
  std::fill(target.begin(), target.end(), std::byte{0});
  ASSERT_FALSE(pair.a.transport->send(1, data_header(2), payload, 2));
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == 1; }));
  EXPECT_EQ(pair.b.arrived[0].header.operation, 2u);
  EXPECT_TRUE(pair.b.arrived[0].payload == payload);
  EXPECT_TRUE(std::ranges::all_of(target, [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(ShmTransport, close_reports_lost_to_the_peer_only_after_all_frames) {
  Pair pair;
  const Bytes payload = pattern(1000, 1);
  for (uint64_t i = 0; i < 5; ++i) pair.a.transport->send(1, data_header(i), payload, i);
  pair.a.transport->close(1);
  EXPECT_EQ(pair.a.transport->credit(1), 0u);
  EXPECT_TRUE(pair.a.transport->send(1, data_header(9), payload, 9)) << "the link is closed";
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.losses.count(0) == 1; }));
  EXPECT_EQ(pair.b.arrived.size(), 5u);
  EXPECT_EQ(pair.b.losses[0].code(), Code::peer_lost);
  EXPECT_NE(pair.b.losses[0].message().find("peer 0"), std::string::npos) << pair.b.losses[0].message();
  EXPECT_TRUE(pair.a.losses.empty());
  EXPECT_EQ(pair.b.transport->state(0), LinkState::lost);
}

TEST(ShmTransport, a_sink_that_has_enough_gets_one_frame_per_poll_and_all_before_a_loss) {
  Pair pair;
  const Bytes payload = pattern(1000, 1);
  pair.b.enough = true;
  for (uint64_t i = 0; i < 5; ++i) pair.a.transport->send(1, data_header(i), payload, i);
  pair.b.transport->poll(0, pair.b);
  EXPECT_EQ(pair.b.arrived.size(), 1u);
  pair.a.transport->close(1);
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.losses.count(0) == 1; }));
  EXPECT_EQ(pair.b.arrived.size(), 5u);
}

TEST(ShmTransport, memory_of_an_ended_link_is_kept_while_the_peer_reads_it) {
  Pair pair;
  pair.b.keep_views = true;
  const Bytes payload = pattern(100'000, 1);
  pair.a.transport->send(1, data_header(1), payload, 1);
  ASSERT_TRUE(run_until({&pair.b}, [&] { return pair.b.views.size() == 1; }));
  pair.a.transport->close(1);
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.losses.count(0) == 1; }));
  const Nanos end = test_now() + 5 * millisecond;
  while (test_now() < end) pair.a.poll(), pair.b.poll();
  EXPECT_EQ(pair.a.transport->regions_in_use(), 1u);
  TestNode c;
  connect(pair.a, 0, c, 2);
  for (uint64_t i = 0; i < 20; ++i) {
    pair.a.transport->send(2, data_header(i), pattern(100'000, 100 + i), i);
    pair.a.poll(), c.poll();
  }
  EXPECT_EQ(std::memcmp(pair.b.views[0].data, payload.data(), payload.size()), 0) << "overwritten while views_out";
  pair.b.transport->release(pair.b.views[0]);
  ASSERT_TRUE(run_until({&pair.a, &pair.b},
                        [&] { return pair.a.transport->regions_in_use() == 1 && pair.b.transport->regions_in_use() == 0; }));
}

TEST(ShmTransport, an_index_can_be_used_again_after_close_and_after_lost) {
  ShmOptions options;
  options.peers_max = 1;
  TestNode a(options);
  for (int round = 0; round < 50; ++round) {
    TestNode b;
    ASSERT_TRUE(run_until({&a}, [&] { return a.transport->regions_in_use() == 0; })) << round;
    a.losses.clear();
    connect(a, 0, b, 1);
    b.transport->send(0, data_header(1), pattern(10, 1), 1);
    a.transport->send(1, data_header(1), pattern(300'000, 1), 1);
    ASSERT_TRUE(
        run_until({&a, &b}, [&] { return b.arrived.size() == 1 && a.arrived.size() == static_cast<size_t>(round) + 1; }));
    if (round % 2 == 0) a.transport->close(1);
    b.transport.reset();
    ASSERT_TRUE(run_until({&a}, [&] { return a.losses.count(1) == static_cast<size_t>(round % 2); }));
  }
}

TEST(ShmTransport, a_slot_being_written_survives_the_loss_of_its_peer) {
  TestNode nodes[3];
  connect_all({&nodes[0], &nodes[1], &nodes[2]});
  const PeerIndex lost[] = {1};
  const PeerIndex other[] = {2};
  const Slot slot = nodes[0].transport->acquire(lost, 10'000, false);
  nodes[1].transport.reset();
  ASSERT_TRUE(run_until({&nodes[0]}, [&] { return nodes[0].transport->regions_in_use() == 1; }));
  for (int i = 0; i < 8; ++i) EXPECT_NE(nodes[0].transport->acquire(other, 10'000, false).data, slot.data);
  nodes[0].transport->commit(slot, data_header(1, 10'000));
  bool comes_back = false;
  for (const bool result : {false, true}) {
    while (const Slot next = nodes[0].transport->acquire(other, 10'000, result)) comes_back |= next.data == slot.data;
  }
  EXPECT_TRUE(comes_back);
}

TEST(ShmTransport, one_free_small_slot_returns_credit) {
  Pair pair;
  pair.b.keep_views = true;
  const PeerIndex to[] = {1};
  while (const Slot slot = pair.a.transport->acquire(to, 100, false)) pair.a.transport->commit(slot, data_header(1, 100));
  ASSERT_TRUE(run_until({&pair.b}, [&] { return pair.b.views.size() == 64 + 16; }));
  pair.a.credits.clear();
  pair.b.transport->release(pair.b.views[0]);
  ASSERT_TRUE(run_until({&pair.a}, [&] { return !pair.a.credits.empty(); }));
  EXPECT_TRUE(pair.a.transport->acquire(to, 100, false));
}

// A copied payload is reported as sent. Its frame would be lost if it waited for the ring and the sender closed the link.
TEST(ShmTransport, no_payload_is_taken_while_the_ring_is_full) {
  Pair pair;
  const PeerIndex to[] = {1};
  uint64_t sent = 0;
  while (pair.a.transport->credit(1) > 0 && sent < 100'000) pair.a.transport->send(1, data_header(sent++), {}, 0);
  ASSERT_LT(sent, 100'000u);
  EXPECT_FALSE(pair.a.transport->acquire(to, 100, false));
  EXPECT_FALSE(pair.a.transport->acquire(to, 100'000, true));
  const Bytes payload = pattern(100, 1);
  EXPECT_FALSE(pair.a.transport->send(1, data_header(sent), payload, 7))
      << "not taken, so the sender must not consider it sent";
  EXPECT_LT(pair.a.transport->next_deadline(), never) << "the peer does not ring a bell when it reads";
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return pair.b.arrived.size() == sent + 1; }));
  EXPECT_EQ(pair.a.sent_ids, std::vector<uint64_t>{7});
  EXPECT_FALSE(pair.a.credits.empty());
  EXPECT_TRUE(pair.a.transport->acquire(to, 100, false));
}

TEST(ShmTransport, sends_pending_at_a_loss_are_reported_first) {
  Pair pair;
  const Bytes payload = pattern(16 << 20, 1);
  ASSERT_FALSE(pair.a.transport->send(1, data_header(1), payload, 5));
  ASSERT_FALSE(pair.a.transport->send(1, data_header(2), payload, 6));
  pair.b.transport.reset();
  ASSERT_TRUE(run_until({&pair.a}, [&] { return pair.a.losses.count(1) == 1; }));
  EXPECT_EQ(pair.a.sent_ids, (std::vector<uint64_t>{5, 6}));
}

TEST(ShmTransport, a_frame_wakes_a_sleeper) {
  Pair pair;
  ASSERT_TRUE(run_until({&pair.a, &pair.b}, [&] { return !pair.b.poll(); }));
  const Bytes payload = pattern(10, 1);
  for (int i = 1; i <= 100; ++i) {
    while (!pair.b.transport->arm()) pair.b.poll();
    std::thread sender([&] { pair.a.transport->send(1, data_header(1), payload, 1); });
    EXPECT_TRUE(readable(pair.b.transport->wait_handle(), 10'000));
    sender.join();
    pair.b.transport->disarm();
    ASSERT_TRUE(run_until(
        {&pair.b}, [&] { return pair.b.arrived.size() == static_cast<size_t>(i); }, second));
  }
}

TEST(ShmTransport, arm_refuses_to_sleep_while_there_is_work) {
  Pair pair;
  pair.a.transport->send(1, data_header(1), {}, 1);
  EXPECT_FALSE(pair.b.transport->arm());
  run_until({&pair.b}, [&] { return pair.b.arrived.size() == 1; });
  EXPECT_TRUE(pair.b.transport->arm());
  pair.b.transport->disarm();
}

TEST(ShmTransport, a_release_wakes_a_sleeper_that_waits_for_credit) {
  Pair pair;
  pair.b.keep_views = true;
  const Bytes payload = pattern(16 << 20, 1);
  const PeerIndex to[] = {1};
  while (const Slot slot = pair.a.transport->acquire(to, 65536, true)) pair.a.transport->commit(slot, data_header(1, 65536));
  ASSERT_TRUE(run_until({&pair.b}, [&] { return pair.b.views.size() == 16; }));
  while (!pair.a.transport->arm()) pair.a.poll();
  EXPECT_FALSE(readable(pair.a.transport->wait_handle(), 0));
  std::thread releaser([&] { pair.b.transport->release(pair.b.views[0]); });
  EXPECT_TRUE(readable(pair.a.transport->wait_handle(), 10'000));
  releaser.join();
  pair.a.transport->disarm();
}

TEST(ShmTransport, two_threads_exchange_frames_while_both_sleep_and_wake) {
  Pair pair;
  constexpr uint64_t total = 2000;
  const auto side = [&](TestNode& node, PeerIndex peer) {
    const Bytes payload = pattern(10'000, 3);
    uint64_t next = 0;
    uint64_t wrong = 0;
    node.on_received = [&](PeerIndex, const FrameHeader& header, const View& view) {
      if (view.bytes != 10'000 || std::memcmp(view.data, payload.data(), view.bytes) != 0) ++wrong;
    };
    node.keep_payloads = false;
    const Nanos end = test_now() + 60 * second;
    while ((node.received_count < total || next < total) && test_now() < end) {
      for (; next < total && node.transport->credit(peer) > 0; ++next)
        node.transport->send(peer, data_header(next), payload, next);
      if (node.poll() || !node.transport->arm()) continue;
      (void)readable(node.transport->wait_handle(), 10'000);
      node.transport->disarm();
    }
    EXPECT_EQ(node.received_count, total);
    EXPECT_EQ(wrong, 0u);
  };
  std::thread other([&] { side(pair.b, 0); });
  side(pair.a, 1);
  other.join();
}

TEST(ShmTransport, payload_checksums_are_checked) {
  ShmOptions options;
  options.payload_checksum = true;
  TestNode a(options);
  TestNode b;
  connect(a, 0, b, 1);
  const Bytes payload = pattern(2 << 20, 1);
  a.transport->send(1, data_header(1), payload, 1);
  a.transport->send(1, data_header(2), std::span(payload).first(100), 1);
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.arrived.size() == 2; }));
  EXPECT_NE(b.arrived[0].header.flags & frame_flag_payload_checksum, 0);
  const PeerIndex to[] = {1};
  const Slot slot = a.transport->acquire(to, 5000, false);
  a.transport->commit(slot, data_header(3, 5000));
  slot.data[77] = static_cast<std::byte>(~static_cast<uint8_t>(slot.data[77]));
  ASSERT_TRUE(run_until({&a, &b}, [&] { return b.losses.count(0) == 1; }));
  EXPECT_EQ(b.losses[0].code(), Code::corrupt);
  EXPECT_EQ(b.transport->counters().refused_frames[static_cast<int>(FrameFault::payload_checksum)], 1u);
}

TEST(ShmTransport, acquire_refuses_payloads_larger_than_a_slot) {
  Pair pair;
  const PeerIndex to[] = {1};
  EXPECT_FALSE(pair.a.transport->acquire(to, (1 << 20) + 1, false));
  EXPECT_TRUE(pair.a.transport->acquire(to, 1 << 20, false));
}

TEST(ShmTransport, options_out_of_range_are_refused) {
  std::vector<ShmOptions> wrong(5);
  wrong[0].peers_max = 0;
  wrong[1].peers_max = 257;
  wrong[2].slot_bytes = 100;
  wrong[3].slot_bytes = 17u << 20;
  wrong[4].slots_per_peer = 1;
  for (const ShmOptions& options : wrong) EXPECT_EQ(ShmTransport::make(options).status().code(), Code::invalid);
}

}  // namespace
}  // namespace unisono::shm

// Datagrams are checked and sealed in batches. The result must be the same as one by one. There are two hard cases. The first
// datagram may close the link or group of the later datagrams. And one datagram of the batch may be forged.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/conformance/udp_virtual_cluster.h"
#include "transports/udp/reliable/udp_outbox.h"

namespace unisono {
namespace {

using conformance::data_header;
using conformance::pattern;

// Sends `count` frames of one fragment each from process 0. They wait in process 1's socket, so one poll receives them in one
// batch.
void send_together(VirtualCluster& cluster, uint64_t count) {
  for (uint64_t frame = 0; frame < count; ++frame) {
    cluster.transports[0]->send(1, data_header(frame, 100), pattern(100, frame), frame);
  }
  cluster.paused = 1;
  cluster.pass(50 * millisecond);
  cluster.paused = -1;
}

TEST(UdpBatch, a_link_closed_by_the_first_datagram_of_a_batch_accepts_no_other) {
  VirtualCluster cluster(2);
  cluster.link_all();
  cluster.pass(100 * millisecond);
  cluster.frame_sinks[1]->on_received = [&](PeerIndex from, const FrameHeader&) { cluster.transports[1]->close(from); };
  send_together(cluster, 10);
  // Process 1 closes its link at the first frame, and the link drains. So the other datagrams count as late, and not as those
  // of an unauthenticated peer.
  const auto before = cluster.transports[1]->dropped(DatagramFault::late);
  cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
  EXPECT_EQ(cluster.frame_sinks[1]->frames.size(), 1u);
  EXPECT_GE(cluster.transports[1]->dropped(DatagramFault::late) - before, 9u);
}

class Closer final : public DatagramSink {
 public:
  DatagramFault datagram(uint32_t group, Rank, const DatagramHeader&, std::span<const std::byte>, Nanos) override {
    ++calls;
    if (transport != nullptr) transport->close_group(group);
    return DatagramFault::none;
  }
  void stream_requested(uint32_t, Rank, const StreamRequest&, Nanos) override {}
  void stream_sent(uint32_t, Rank, StreamName) override {}
  UdpTransport* transport = nullptr;
  size_t calls = 0;
};

class UdpBatchOfGroup : public testing::Test {
 protected:
  void SetUp() override {
    cluster.link_all();
    cluster.pass(100 * millisecond);
    for (const Rank rank : {0u, 1u}) {
      what.self = rank;
      const PeerIndex peers[] = {0, 1};
      ASSERT_TRUE(cluster.transports[rank]->open_group(9, what, peers, sinks[rank]).ok());
    }
  }
  void send_ranges(uint64_t count) {
    const auto bytes = pattern(1000 * count, 4);
    cluster.transports[0]->send_stream(9, {.to = 1,
                                           .name = {.op = 1, .phase = 0},
                                           .bytes = bytes,
                                           .range_bytes = 1000,
                                           .contributors = {},
                                           .deadline_us = 77'000});
    cluster.paused = 1;
    cluster.pass(50 * millisecond);
    cluster.paused = -1;
    cluster.transports[0]->drop_stream(9, 1, {.op = 1, .phase = 0});
  }
  VirtualCluster cluster{2};
  Closer sinks[2];
  DatagramGroup what{.run_id = 77, .epoch = 7, .self = 0, .world = 2, .auth = DatagramAuth::mac, .key = {}};
};

TEST_F(UdpBatchOfGroup, a_group_closed_by_the_first_datagram_accepts_no_other) {
  sinks[1].transport = cluster.transports[1].get();
  send_ranges(10);
  const auto before = cluster.transports[1]->dropped(DatagramFault::run);
  cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
  EXPECT_EQ(sinks[1].calls, 1u);
  EXPECT_GE(cluster.transports[1]->dropped(DatagramFault::run) - before, 9u);
}

// Flips one bit of one datagram. Only that datagram is dropped, even if the bit is in the tag (bytes 48 to 55).
TEST_F(UdpBatchOfGroup, only_the_forged_datagram_of_a_batch_is_dropped) {
  for (const size_t at : {size_t{0}, size_t{3}, size_t{9}}) {
    for (const size_t byte : {size_t{41}, size_t{48}, size_t{55}, size_t{56}, size_t{1055}}) {
      VirtualNetwork::Datagram bad;
      size_t number = 0;
      cluster.network.filter = [&](const VirtualNetwork::Datagram& datagram) {
        if (datagram.header().kind != DatagramKind::data || number++ != at) return true;
        bad = datagram;
        return false;
      };
      send_ranges(10);
      ASSERT_EQ(bad.bytes.size(), 1056u);
      bad.bytes[byte] ^= std::byte{4};
      bad.at = cluster.network.now;
      cluster.network.filter = nullptr;
      cluster.network.inject(bad);
      const auto calls = sinks[1].calls, tags = cluster.transports[1]->dropped(DatagramFault::tag);
      cluster.transports[1]->poll(cluster.network.now, *cluster.frame_sinks[1]);
      EXPECT_EQ(cluster.transports[1]->dropped(DatagramFault::tag) - tags, 1u) << "datagram " << at << ", byte " << byte;
      EXPECT_GE(sinks[1].calls - calls, 9u);
      cluster.pass(50 * millisecond);
    }
  }
}

// Sending ----------------------------------------------------------------------------------------------------------------

// A socket that takes at most `most` datagrams in a call and then would block.
class SlowSocket final : public DatagramSocket {
 public:
  SendOutcome send(std::span<const OutDatagram> batch) override {
    const size_t taken = std::min(batch.size(), most);
    for (const auto& datagram : batch.first(taken)) {
      Bytes bytes(datagram_header_bytes + datagram.payload.size());
      std::memcpy(bytes.data(), &datagram.header, datagram_header_bytes);
      if (!datagram.payload.empty())
        std::memcpy(bytes.data() + datagram_header_bytes, datagram.payload.data(), datagram.payload.size());
      sent.push_back(bytes);
    }
    return {.taken = taken, .stop = taken < batch.size() ? SendStop::would_block : SendStop::none};
  }
  ReceiveOutcome receive(DatagramInbox&, size_t) override { return {.drained = true}; }
  int wait_handle() const override { return -1; }
  uint64_t own_drops() const override { return 0; }
  const TcpAddress& address() const override { return own; }
  TcpAddress own;
  size_t most = 1000;
  std::vector<Bytes> sent;
};

class UdpOutboxOf : public testing::Test {
 protected:
  const DatagramSeal& seal_of(uint32_t number) const { return seals[number % 3]; }
  void add(uint32_t number, size_t bytes) {
    auto* payload = outbox.scratch();
    std::fill_n(payload, bytes, static_cast<std::byte>(number));
    DatagramHeader header;
    header.flow_seq = number;
    header.payload_bytes = static_cast<uint16_t>(bytes);
    if (number % 5 == 4) {
      seal_datagram(header, {payload, bytes}, seal_of(number));
      outbox.add_sealed(to, header, {payload, bytes}, counters);
    } else {
      outbox.add(to, header, {payload, bytes}, seal_of(number), counters);
    }
  }
  void expect_all_sent(uint32_t count) {
    ASSERT_EQ(socket.sent.size(), count);
    for (uint32_t number = 0; number < count; ++number) {
      DatagramHeader header;
      std::memcpy(&header, socket.sent[number].data(), sizeof header);
      EXPECT_EQ(header.flow_seq, number);
      EXPECT_EQ(check_tag(header, socket.sent[number], seal_of(number)), DatagramFault::none) << number;
    }
  }
  SlowSocket socket;
  UdpOutbox outbox{socket, 2000};
  UdpSendCounters counters;
  TcpAddress to;
  // Two links whose datagrams have tags, and one link with checksums.
  DatagramSeal seals[3] = {{.key = {1, 2}, .auth = DatagramAuth::mac},
                           {.key = {3, 4}, .auth = DatagramAuth::mac},
                           {.key = {}, .auth = DatagramAuth::checksum}};
};

TEST_F(UdpOutboxOf, each_datagram_is_sealed_for_its_own_link) {
  for (uint32_t number = 0; number < UdpOutbox::batch; ++number) add(number, number % 7 == 0 ? 24 : 1400);
  EXPECT_EQ(outbox.credit(), 0u);
  EXPECT_TRUE(outbox.flush());
  expect_all_sent(UdpOutbox::batch);
  EXPECT_EQ(counters.datagrams, UdpOutbox::batch);
}

// Datagrams that the network did not take are sent unchanged later, and datagrams added afterwards are sealed, too.
TEST_F(UdpOutboxOf, flush_continues_where_the_network_stopped) {
  socket.most = 10;
  uint32_t number = 0;
  while (number < 40) add(number++, 700);
  EXPECT_FALSE(outbox.flush());
  EXPECT_TRUE(outbox.blocked());
  EXPECT_FALSE(outbox.flush());
  socket.most = 1000;
  EXPECT_TRUE(outbox.flush());
  while (number < 60) add(number++, 900);
  EXPECT_TRUE(outbox.flush());
  expect_all_sent(60);
}

TEST_F(UdpOutboxOf, forgets_one_receiver_and_keeps_the_others) {
  UdpSendCounters gone;
  socket.most = 0;
  for (uint32_t number = 0; number < 6; ++number) {
    DatagramHeader header;
    header.flow_seq = number;
    outbox.add(to, header, {}, seals[0], number % 2 == 0 ? counters : gone);
  }
  EXPECT_FALSE(outbox.flush());
  outbox.forget(gone);
  socket.most = 1000;
  EXPECT_TRUE(outbox.flush());
  ASSERT_EQ(socket.sent.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) {
    DatagramHeader header;
    std::memcpy(&header, socket.sent[i].data(), sizeof header);
    EXPECT_EQ(header.flow_seq, 2 * i);
    EXPECT_EQ(check_tag(header, socket.sent[i], seals[0]), DatagramFault::none);
  }
  EXPECT_EQ(gone.datagrams, 0u);
}

}  // namespace
}  // namespace unisono

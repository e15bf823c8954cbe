// Virtual sockets: timing, queues, notifications, and losses that follow their model.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "sim/udp/socket_network.h"

namespace unisono::sim {
namespace {

class Inbox final : public DatagramInbox {
 public:
  struct Arrival {
    DatagramHeader header;
    size_t bytes = 0;
    uint16_t from = 0;
    Nanos at = 0;
  };
  void arrived(std::span<const InDatagram> batch) override {
    for (const auto& datagram : batch) {
      Arrival one{.header = {}, .bytes = datagram.bytes.size(), .from = datagram.from->port(), .at = datagram.came};
      std::memcpy(&one.header, datagram.bytes.data(), sizeof one.header);
      all.push_back(one);
    }
  }
  void refused(const TcpAddress& to) override { refusals.push_back(to.port()); }
  std::vector<Arrival> all;
  std::vector<uint16_t> refusals;
};

struct Ports {
  explicit Ports(const SocketNetworkSettings& settings) : event_queue(settings.processes), network(settings, event_queue) {
    for (PeerIndex process = 0; process < settings.processes; ++process) sockets.push_back(network.make_socket(process));
  }
  SendOutcome send(PeerIndex from, PeerIndex to, size_t payload, DatagramHeader header = {}) {
    const std::vector<std::byte> bytes(payload);
    const auto address = SocketNetwork::address_of(to);
    const OutDatagram out{.to = &address, .header = header, .payload = bytes};
    return sockets[from]->send({&out, 1});
  }
  void pass() {
    while (!event_queue.empty()) {
      const auto event = event_queue.pop();
      if (event.kind == EventKind::arrive) (void)network.arrive(event.index);
    }
  }
  // Waits until everything in flight to the process is readable, and reads it.
  Inbox read(PeerIndex process) {
    pass();
    Inbox inbox;
    event_queue.add(event_queue.now() + second, EventKind::act, 0, 0);
    pass();
    while (!sockets[process]->receive(inbox, 100).drained) continue;
    return inbox;
  }
  EventQueue event_queue;
  SocketNetwork network;
  DatagramSockets sockets;
};

constexpr size_t payload = 1416, on_the_wire = 1472 + 66;

TEST(SocketNetwork, a_datagram_takes_the_time_of_two_ports_and_the_delay) {
  Ports ports({.processes = 2, .bytes_per_second = 1e6, .delay = 3 * millisecond});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ports.send(0, 1, payload).taken, 1u);
  const auto inbox = ports.read(1);
  ASSERT_EQ(inbox.all.size(), 3u);
  const Nanos each = static_cast<Nanos>(on_the_wire) * 1000;
  for (Nanos i = 0; i < 3; ++i) EXPECT_EQ(inbox.all[static_cast<size_t>(i)].at, (2 + i) * each + 3 * millisecond);
  EXPECT_EQ(inbox.all[0].bytes, 1472u);
  EXPECT_EQ(inbox.all[0].from, SocketNetwork::address_of(0).port());
}

TEST(SocketNetwork, many_senders_overflow_the_queue_of_one_port) {
  Ports ports({.processes = 9, .bytes_per_second = 1e6, .queue_bytes = 8 * 1472});
  for (int i = 0; i < 4; ++i) {
    for (PeerIndex from = 1; from < 9; ++from) (void)ports.send(from, 0, payload);
  }
  const auto inbox = ports.read(0);
  const auto& fates = ports.network.fates();
  EXPECT_EQ(fates.sent, 32u);
  EXPECT_EQ(fates.delivered, inbox.all.size());
  EXPECT_EQ(fates.delivered + fates.overflowed, 32u);
  // Eight senders send four datagrams each. The queue holds the first eight. While the other 24 arrive in three rounds, one or
  // two datagrams leave the queue per round. So at most 6 more fit.
  EXPECT_GE(fates.overflowed, 32u - 8 - 6);
  EXPECT_LE(fates.overflowed, 32u - 8);
  EXPECT_EQ(ports.network.fates_of_data(0).overflowed, fates.overflowed) << "headers say data, of phase 0";
  EXPECT_EQ(ports.sockets[0]->own_drops(), 0u) << "the network dropped them, not the socket";
}

TEST(SocketNetwork, a_process_that_does_not_read_loses_datagrams_beyond_its_socket_buffer) {
  Ports ports({.processes = 2, .bytes_per_second = 1e9, .queue_bytes = 2 * 1472, .socket_bytes = 10 * 1472});
  for (int i = 0; i < 40; ++i) (void)ports.send(0, 1, payload);
  ports.pass();
  EXPECT_EQ(ports.sockets[1]->own_drops(), ports.network.fates().unread);
  EXPECT_EQ(ports.network.fates().delivered, 12u);
  EXPECT_EQ(ports.network.fates().unread, 28u);
}

TEST(SocketNetwork, a_socket_refuses_long_datagrams_and_blocks_when_its_buffer_is_full) {
  Ports ports({.processes = 2, .bytes_per_second = 1e6});
  EXPECT_EQ(ports.send(0, 1, payload + 1), (SendOutcome{.taken = 0, .stop = SendStop::too_long, .error = 0}));
  int taken = 0;
  while (ports.send(0, 1, payload).taken == 1) ASSERT_LT(++taken, 2000);
  EXPECT_EQ(ports.send(0, 1, payload).stop, SendStop::would_block);
  EXPECT_NEAR(taken, (1 << 20) / 1538, 2);
}

TEST(SocketNetwork, the_host_of_a_dead_process_refuses_datagrams_and_that_of_a_cut_off_one_does_not) {
  Ports ports({.processes = 3});
  ports.network.kill(1);
  ports.network.cut_off(2, true);
  (void)ports.send(0, 1, 10);
  (void)ports.send(0, 2, 10);
  (void)ports.send(2, 0, 10);
  const auto inbox = ports.read(0);
  EXPECT_TRUE(inbox.all.empty());
  EXPECT_EQ(inbox.refusals, std::vector<uint16_t>{SocketNetwork::address_of(1).port()});
  EXPECT_EQ(ports.network.fates().cut, 3u);
  ports.network.cut_off(2, false);
  (void)ports.send(2, 0, 10);
  EXPECT_EQ(ports.read(0).all.size(), 1u);
}

TEST(SocketNetwork, a_slow_process_has_slow_ports) {
  Ports ports({.processes = 3, .bytes_per_second = 1e6, .delay = 0});
  ports.network.slow_down(1, 10);
  (void)ports.send(0, 1, payload);
  (void)ports.send(0, 2, payload);
  const Nanos each = static_cast<Nanos>(on_the_wire) * 1000;
  EXPECT_EQ(ports.read(1).all.at(0).at, 11 * each);
  EXPECT_EQ(ports.read(2).all.at(0).at, 3 * each) << "it waits behind the other datagram, but is not slower";
}

TEST(SocketNetwork, jitter_reorders_datagrams) {
  Ports ports({.processes = 2, .bytes_per_second = 1e9, .jitter = millisecond});
  for (uint32_t i = 0; i < 50; ++i) (void)ports.send(0, 1, 10, {.flow_seq = i});
  const auto inbox = ports.read(1);
  ASSERT_EQ(inbox.all.size(), 50u);
  int overtaken = 0;
  for (size_t i = 1; i < 50; ++i) overtaken += inbox.all[i].header.flow_seq < inbox.all[i - 1].header.flow_seq;
  EXPECT_GT(overtaken, 5);
}

// Sends data streams from rank 0 to ranks 1 and 2. Returns for each receiver which ranges arrived.
std::array<std::vector<bool>, 2> streams(const LossModel& loss, uint32_t operations, uint32_t ranges, uint64_t seed = 1) {
  Ports ports({.processes = 3,
               .seed = seed,
               .bytes_per_second = 1e12,
               .delay = 0,
               .queue_bytes = 1u << 30,
               .socket_bytes = 1u << 30,
               .loss = loss,
               .ranges = ranges});
  std::array<std::vector<bool>, 2> came;
  for (auto& one : came) one.assign(size_t{operations} * ranges, false);
  for (uint32_t op = 0; op < operations; ++op) {
    for (uint32_t range = 0; range < ranges; ++range) {
      for (PeerIndex to : {1u, 2u}) (void)ports.send(0, to, 0, {.op = op, .packet_index = range});
    }
    for (PeerIndex to : {1u, 2u}) {
      for (const auto& one : ports.read(to).all) came[to - 1][one.header.op * ranges + one.header.packet_index] = true;
    }
  }
  return came;
}

TEST(SocketNetwork, independent_losses_have_the_given_rate_and_are_reproducible) {
  const auto loss = *LossModel::parse("0.1");
  const auto came = streams(loss, 100, 100);
  const auto missing = static_cast<double>(std::count(came[0].begin(), came[0].end(), false));
  EXPECT_NEAR(missing / 10'000, .1, 4.5 * std::sqrt(.09 / 10'000));
  EXPECT_EQ(came, streams(loss, 100, 100));
  EXPECT_NE(came, streams(loss, 100, 100, 2));
}

TEST(SocketNetwork, two_receivers_miss_a_range_together_with_the_given_probability) {
  const auto came = streams(*LossModel::parse("joint:p=0.1,both=0.05"), 200, 100);
  double one = 0, both = 0;
  for (size_t i = 0; i < came[0].size(); ++i) one += !came[0][i], both += !came[0][i] && !came[1][i];
  EXPECT_NEAR(one / 20'000, .1, .01);
  EXPECT_NEAR(both / 20'000, .05, .007) << "independent receivers would give 0.01";
}

TEST(SocketNetwork, bursts_have_the_given_length) {
  const auto came = streams(*LossModel::parse("gilbert_elliott:p=0.1,burst=8"), 400, 100)[0];
  double missing = 0, bursts = 0;
  for (size_t i = 0; i < came.size(); ++i) missing += !came[i], bursts += !came[i] && (i == 0 || came[i - 1]);
  EXPECT_NEAR(missing / 40'000, .1, .03);
  EXPECT_NEAR(missing / bursts, 8, 1.5);
}

TEST(SocketNetwork, a_repeated_datagram_is_lost_independently) {
  Ports ports({.processes = 2,
               .bytes_per_second = 1e12,
               .queue_bytes = 1u << 30,
               .loss = *LossModel::parse("iid:0.5,granularity=shard"),
               .ranges = 10});
  for (uint32_t op = 0; op < 40; ++op) {
    for (uint32_t range = 0; range < 10; ++range) (void)ports.send(0, 1, 0, {.op = op, .packet_index = range});
  }
  std::map<uint32_t, int> by_stream;
  for (const auto& one : ports.read(1).all) ++by_stream[one.header.op];
  for (const auto& [op, count] : by_stream) EXPECT_EQ(count, 10) << "stream " << op << " is lost as a whole or not at all";
  EXPECT_NEAR(static_cast<double>(by_stream.size()), 20, 15);
  size_t repaired = 0;
  for (uint32_t i = 0; i < 400; ++i) (void)ports.send(0, 1, 0, {.flags = datagram_repaired});
  repaired = ports.read(1).all.size();
  EXPECT_NEAR(static_cast<double>(repaired), 200, 45);
}

}  // namespace
}  // namespace unisono::sim

#include "net/losing_socket.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "transports/udp/udp_test_support.h"

namespace unisono {
namespace {

struct Inbox final : DatagramInbox {
  void arrived(std::span<const InDatagram> batch) override {
    for (const auto& datagram : batch) {
      DatagramHeader header;
      std::memcpy(&header, datagram.bytes.data(), sizeof header);
      numbers.push_back(header.flow_seq);
    }
  }
  void refused(const TcpAddress&) override { ++refusals; }
  std::vector<uint32_t> numbers;
  int refusals = 0;
};

// Sends `count` numbered datagrams through a losing socket. Returns the numbers of those that arrived.
std::vector<uint32_t> pass(const InjectedLoss& loss, uint32_t count) {
  VirtualNetwork network(1);
  auto sender = network.socket("10.0.0.1:1");
  LosingSocket receiver(network.socket("10.0.0.2:2"), loss);
  for (uint32_t number = 0; number < count; ++number) {
    OutDatagram datagram{.to = &receiver.address(), .header = {}};
    datagram.header.flow_seq = number;
    EXPECT_EQ(sender->send({&datagram, 1}).taken, 1u);
  }
  network.now += second;
  Inbox inbox;
  EXPECT_EQ(receiver.receive(inbox, count).datagrams, count);
  EXPECT_EQ(receiver.lost() + inbox.numbers.size(), count);
  EXPECT_EQ(receiver.own_drops(), 0u);
  return inbox.numbers;
}

TEST(LosingSocket, loses_the_configured_share) {
  for (const uint32_t per_mille : {0u, 1u, 100u, 999u}) {
    constexpr uint32_t count = 100'000;
    const double p = per_mille / 1000.0;
    EXPECT_NEAR(1 - static_cast<double>(pass({.per_mille = per_mille, .seed = 3}, count).size()) / count, p,
                4 * std::sqrt(p * (1 - p) / count))
        << per_mille;
  }
}

TEST(LosingSocket, the_seed_determines_which_datagrams_are_lost) {
  EXPECT_EQ(pass({.per_mille = 300, .seed = 3}, 1000), pass({.per_mille = 300, .seed = 3}, 1000));
  EXPECT_NE(pass({.per_mille = 300, .seed = 3}, 1000), pass({.per_mille = 300, .seed = 4}, 1000));
}

TEST(LosingSocket, refusals_are_passed_on) {
  VirtualNetwork network(1);
  LosingSocket socket(network.socket("10.0.0.1:1"), {.per_mille = 999, .seed = 1});
  const auto nobody = *parse_tcp_endpoint("tcp://10.0.0.9:9");
  OutDatagram datagram{.to = &nobody, .header = {}};
  socket.send({&datagram, 1});
  Inbox inbox;
  socket.receive(inbox, 1);
  EXPECT_EQ(inbox.refusals, 1);
}

}  // namespace
}  // namespace unisono

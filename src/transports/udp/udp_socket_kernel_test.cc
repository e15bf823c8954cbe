// The kernel's errors when it does not take a datagram: a full socket, a full queue behind the socket, a firewall, a small MTU.
// Each test makes a new network name space, so it needs root, and the programs ip, tc and nft.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/concat.h"
#include "transports/udp/udp_socket.h"

namespace unisono {
namespace {

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

bool enter_new_network() {
  if (::unshare(CLONE_NEWNET) != 0) return false;
  const Descriptor socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  request.ifr_name[0] = 'l', request.ifr_name[1] = 'o';
  request.ifr_flags = IFF_UP;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

// Completes the text of a skipped test: without these, a test cannot change the rate, the losses or the path of a network.
constexpr const char* network_needs = " (a network namespace needs root, ip, tc and nft)";

// Makes a new network name space in a new thread, and runs `test` there. The other threads keep their name space. Returns false
// if this host does not allow it.
bool in_new_network(const std::string& set_up, const std::function<void()>& test) {
  bool possible = false;
  std::thread([&] {
    possible = enter_new_network() && run(set_up);
    if (possible) test();
  }).join();
  return possible;
}

std::unique_ptr<UdpSocket> make_socket(UdpSocketOptions options = {}, const char* address = "127.0.0.1") {
  options.address = parse_tcp_address(address).value();
  auto made = UdpSocket::make(options);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

struct Numbers final : DatagramInbox {
  void arrived(std::span<const InDatagram> batch) override {
    DatagramHeader header;
    for (const auto& datagram : batch) {
      if (check_shape(datagram.bytes, 65507, header) == DatagramFault::none) ops.push_back(header.op);
    }
  }
  void refused(const TcpAddress&) override { ++refusals; }
  std::vector<uint32_t> ops;
  int refusals = 0;
};

std::vector<OutDatagram> numbered(size_t count, const TcpAddress& to, const Bytes& payload) {
  std::vector<OutDatagram> batch(
      count, {.to = &to, .header = {.payload_bytes = static_cast<uint16_t>(payload.size())}, .payload = payload});
  for (size_t i = 0; i < count; ++i) batch[i].header.op = static_cast<uint32_t>(i);
  return batch;
}

std::vector<uint32_t> up_to(size_t count) {
  std::vector<uint32_t> numbers(count);
  for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<uint32_t>(i);
  return numbers;
}

// Sorts received numbers. The sender and a timer both empty a queue of tc. So on two processors one datagram may overtake
// another.
std::vector<uint32_t> in_order(std::vector<uint32_t> numbers) {
  std::ranges::sort(numbers);
  return numbers;
}

bool wait_for(const DatagramSocket& socket, short events) {
  pollfd wait{socket.wait_handle(), events, 0};
  return ::poll(&wait, 1, 5'000) > 0;
}

void full_socket(bool runs) {
  const auto sender = make_socket({.send_buffer_bytes = 30'000, .segmentation_offload = runs}), receiver = make_socket();
  const Bytes payload(944);
  const auto batch = numbered(400, receiver->address(), payload);
  size_t taken = 0, stops = 0;
  while (taken < batch.size()) {
    const auto outcome = sender->send(std::span(batch).subspan(taken));
    taken += outcome.taken;
    if (taken == batch.size()) break;
    ASSERT_EQ(outcome.stop, SendStop::would_block) << outcome.error;
    ++stops;
    ASSERT_TRUE(wait_for(*sender, POLLOUT));
  }
  EXPECT_GT(stops, 0u);
  Numbers inbox;
  while (inbox.ops.size() < batch.size() && wait_for(*receiver, POLLIN)) receiver->receive(inbox, 1000);
  EXPECT_EQ(in_order(inbox.ops), up_to(batch.size()));
}

TEST(UdpSocketKernel, a_full_socket_blocks_until_it_is_writable_and_nothing_is_lost) {
  for (const bool runs : {false, true}) {
    if (!in_new_network("tc qdisc add dev lo root tbf rate 80mbit burst 70kb limit 10mb", [&] { full_socket(runs); }))
      GTEST_SKIP() << "SKIPPED: no network namespace can be made here" << network_needs;
  }
}

TEST(UdpSocketKernel, a_full_queue_behind_the_socket_is_reported_and_its_datagram_is_not_taken) {
  const auto test = [] {
    const auto sender = make_socket({.segmentation_offload = false}), receiver = make_socket();
    const Bytes payload(944);
    const auto batch = numbered(200, receiver->address(), payload);
    const auto outcome = sender->send(batch);
    EXPECT_EQ(outcome.stop, SendStop::no_buffers);
    EXPECT_EQ(outcome.error, ENOBUFS);
    EXPECT_LT(outcome.taken, 200u);
    EXPECT_GT(outcome.taken, 0u);
    Numbers inbox;
    while (inbox.ops.size() < outcome.taken && wait_for(*receiver, POLLIN)) receiver->receive(inbox, 1000);
    EXPECT_EQ(in_order(inbox.ops), up_to(outcome.taken));
  };
  if (!in_new_network("tc qdisc add dev lo root tbf rate 10mbit burst 4kb limit 20kb", test))
    GTEST_SKIP() << "SKIPPED: no network namespace can be made here" << network_needs;
}

void firewall(bool runs) {
  const auto sender = make_socket({.segmentation_offload = runs}), receiver = make_socket(), forbidden = make_socket();
  ASSERT_TRUE(run(concat("nft add rule ip t o udp dport ", forbidden->address().port(), " drop")));
  const Bytes payload(944);
  auto batch = numbered(30, receiver->address(), payload);
  for (size_t i = 10; i < 20; ++i) batch[i].to = &forbidden->address();
  const std::span<const OutDatagram> all(batch);
  EXPECT_EQ(sender->send(all), (SendOutcome{.taken = 10, .stop = SendStop::firewalled, .error = EPERM}));
  EXPECT_EQ(sender->send(all.subspan(10)), (SendOutcome{.taken = 0, .stop = SendStop::firewalled, .error = EPERM}));
  EXPECT_EQ(sender->send(all.subspan(20)), (SendOutcome{.taken = 10}));
  EXPECT_EQ(sender->segmentation_offload(), runs) << "that was no refusal of runs";
  Numbers inbox, none;
  while (inbox.ops.size() < 20 && wait_for(*receiver, POLLIN)) receiver->receive(inbox, 1000);
  auto expected = up_to(30);
  expected.erase(expected.begin() + 10, expected.begin() + 20);
  EXPECT_EQ(inbox.ops, expected);
  EXPECT_EQ(forbidden->receive(none, 100), (ReceiveOutcome{.datagrams = 0, .drained = true}));
  EXPECT_EQ(sender->receive(none, 100), (ReceiveOutcome{.datagrams = 0, .drained = true}));
  EXPECT_EQ(none.refusals, 0);
}

TEST(UdpSocketKernel, a_firewall_is_reported_for_its_datagrams_only) {
  const char* set_up = "nft add table ip t && nft add chain ip t o '{ type filter hook output priority 0; }'";
  for (const bool runs : {false, true}) {
    if (!in_new_network(set_up, [&] { firewall(runs); }))
      GTEST_SKIP() << "SKIPPED: no network namespace can be made here" << network_needs;
  }
}

// Sends datagrams of the largest possible size and datagrams one byte longer. Kernels refuse the longer ones with different
// error numbers, for a run and for a single datagram. The socket must report EMSGSIZE in both cases.
void narrow_path(const char* address, size_t largest) {
  const auto sender = make_socket({}, address), receiver = make_socket({}, address);
  const bool runs = sender->segmentation_offload();
  const Bytes fitting(largest - datagram_header_bytes), longer(largest - datagram_header_bytes + 1);
  const auto good = numbered(10, receiver->address(), fitting), bad = numbered(10, receiver->address(), longer);
  EXPECT_EQ(sender->send(good), (SendOutcome{.taken = 10}));
  EXPECT_EQ(sender->send(bad), (SendOutcome{.taken = 0, .stop = SendStop::too_long, .error = EMSGSIZE}));
  EXPECT_EQ(sender->segmentation_offload(), runs) << "that was no refusal of runs";
  EXPECT_EQ(sender->send(good), (SendOutcome{.taken = 10}));
  Numbers inbox, none;
  while (inbox.ops.size() < 20 && wait_for(*receiver, POLLIN)) receiver->receive(inbox, 1000);
  auto expected = up_to(10);
  const auto again = expected;
  expected.insert(expected.end(), again.begin(), again.end());
  EXPECT_EQ(inbox.ops, expected);
  EXPECT_TRUE(sender->receive(none, 1).drained);
  EXPECT_EQ(none.refusals, 0);
}

TEST(UdpSocketKernel, the_largest_datagram_is_sent_and_a_longer_one_is_reported) {
  if (!in_new_network("ip link set lo mtu 1500", [] { narrow_path("127.0.0.1", 1472); }))
    GTEST_SKIP() << "SKIPPED: no network namespace can be made here" << network_needs;
  if (!UdpSocket::make({.address = parse_tcp_address("::1").value()}).ok()) GTEST_SKIP() << "no IPv6 on this host";
  in_new_network("ip link set lo mtu 1500", [] { narrow_path("::1", 1452); });
}

}  // namespace
}  // namespace unisono

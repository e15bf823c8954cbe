// Edge cases of UDP sockets: kernels that refuse runs, datagrams of unauthenticated peers, unavailable addresses, counters that
// wrap, and memory.
#include <algorithm>
#include <array>
#include <cerrno>
#include <vector>

#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "transports/udp/udp_socket.h"

namespace unisono {
namespace {

TcpAddress address_of(std::string_view text, uint16_t port = 0) {
  auto address = parse_tcp_address(text);
  EXPECT_TRUE(address.ok());
  address->set_port(port);
  return address.value();
}

UdpSocketOptions options() { return {.address = address_of("127.0.0.1")}; }

std::unique_ptr<UdpSocket> make(const UdpSocketOptions& with) {
  auto made = UdpSocket::make(with);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

struct Sizes final : DatagramInbox {
  void arrived(std::span<const InDatagram> batch) override {
    for (const auto& datagram : batch) sizes.push_back(datagram.bytes.size());
  }
  void refused(const TcpAddress&) override {}
  std::vector<size_t> sizes;
};

void receive_all(DatagramSocket& socket, Sizes& inbox, size_t count) {
  pollfd wait{socket.wait_handle(), POLLIN, 0};
  while (inbox.sizes.size() < count && ::poll(&wait, 1, 5'000) > 0) socket.receive(inbox, 1000);
}

std::vector<OutDatagram> equal_ones(size_t count, const TcpAddress& to, const Bytes& payload) {
  const OutDatagram one{.to = &to, .header = {.payload_bytes = static_cast<uint16_t>(payload.size())}, .payload = payload};
  return std::vector<OutDatagram>(count, one);
}

// If the kernel refuses a run, no datagram may be lost. The test disables UDP checksums, because then every kernel refuses
// runs.
TEST(UdpSocketRefusedRuns, refused_runs_lose_no_datagram_and_are_not_tried_again) {
  const auto sender = make(options()), receiver = make(options());
  if (!sender->segmentation_offload()) GTEST_SKIP() << "this kernel has no segmentation offload for UDP";
  const int on = 1;
  ASSERT_EQ(::setsockopt(sender->wait_handle(), SOL_SOCKET, SO_NO_CHECK, &on, sizeof on), 0);
  const Bytes payload(944);
  const auto batch = equal_ones(150, receiver->address(), payload);
  EXPECT_EQ(sender->send(batch), (SendOutcome{.taken = 150}));
  EXPECT_FALSE(sender->segmentation_offload());
  EXPECT_EQ(sender->counters().sent, 150u);
  EXPECT_EQ(sender->counters().sent_in_runs, 0u);
  Sizes inbox;
  receive_all(*receiver, inbox, 150);
  EXPECT_EQ(inbox.sizes, std::vector<size_t>(150, 1000));

  const int off = 0;
  ASSERT_EQ(::setsockopt(sender->wait_handle(), SOL_SOCKET, SO_NO_CHECK, &off, sizeof off), 0);
  EXPECT_EQ(sender->send(batch), (SendOutcome{.taken = 150}));
  EXPECT_EQ(sender->counters().sent_in_runs, 0u);
}

TEST(UdpSocketRuns, runs_need_fewer_calls) {
  const auto sender = make(options()), receiver = make(options());
  const Bytes payload(944);
  const auto batch = equal_ones(150, receiver->address(), payload);
  EXPECT_EQ(sender->send(batch), (SendOutcome{.taken = 150}));
  EXPECT_EQ(sender->counters().sent_calls, 1u);
  EXPECT_EQ(sender->counters().sent_in_runs, sender->segmentation_offload() ? 150u : 0u);
  Sizes inbox;
  receive_all(*receiver, inbox, 150);
  if (sender->segmentation_offload() && receiver->receive_offload()) {
    EXPECT_EQ(receiver->counters().received_calls, 1u);
  }
}

// Runs have at most 64 datagrams, because kernels before 6.9 refuse longer runs. 150 datagrams of 100 bytes are runs of 64, 64
// and 22. A plain socket with UDP_GRO receives them as they were sent.
TEST(UdpSocketRuns, runs_have_at_most_64_datagrams) {
  const auto sender = make(options());
  const Descriptor receiver(::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
  auto to = address_of("127.0.0.1");
  const int on = 1;
  ASSERT_EQ(::bind(receiver.get(), to.get(), to.bytes), 0);
  if (!sender->segmentation_offload() || ::setsockopt(receiver.get(), SOL_UDP, UDP_GRO, &on, sizeof on) != 0)
    GTEST_SKIP() << "this kernel has no runs";
  to = local_address(receiver.get());
  const Bytes payload(44);
  EXPECT_EQ(sender->send(equal_ones(150, to, payload)), (SendOutcome{.taken = 150}));
  std::vector<ptrdiff_t> runs;
  pollfd wait{receiver.get(), POLLIN, 0};
  Bytes memory(65536);
  while (runs.size() < 3 && ::poll(&wait, 1, 5'000) > 0)
    runs.push_back(::recv(receiver.get(), memory.data(), memory.size(), 0));
  EXPECT_EQ(runs, (std::vector<ptrdiff_t>{6400, 6400, 2200}));
}

TEST(UdpSocket, an_empty_batch_sends_nothing) {
  const auto socket = make(options());
  EXPECT_EQ(socket->send({}), SendOutcome{});
  EXPECT_EQ(socket->counters().sent_calls, 0u);
}

TEST(UdpSocket, datagrams_of_other_protocols_are_delivered) {
  const auto receiver = make(options());
  const Descriptor unauthenticated(::socket(AF_INET, SOCK_DGRAM, 0));
  const auto& to = receiver->address();
  const std::array<char, 5> text{'h', 'e', 'l', 'l', 'o'};
  ASSERT_EQ(::sendto(unauthenticated.get(), text.data(), 0, 0, to.get(), to.bytes), 0);
  ASSERT_EQ(::sendto(unauthenticated.get(), text.data(), text.size(), 0, to.get(), to.bytes), 5);
  Sizes inbox;
  receive_all(*receiver, inbox, 2);
  EXPECT_EQ(inbox.sizes, (std::vector<size_t>{0, 5}));
}

TEST(UdpSocket, a_datagram_longer_than_the_maximum_is_detected) {
  auto narrow = options();
  narrow.datagram_bytes_max = 1472;
  for (const bool aggregation : {false, true}) {
    narrow.receive_offload = aggregation;
    const auto sender = make(options()), receiver = make(narrow);
    const Bytes longer(1473 - datagram_header_bytes), longest(60'000), fitting(1472 - datagram_header_bytes);
    for (const auto* payload : {&longer, &longest, &fitting})
      EXPECT_EQ(sender->send(equal_ones(1, receiver->address(), *payload)), (SendOutcome{.taken = 1}));
    Sizes inbox;
    receive_all(*receiver, inbox, 3);
    ASSERT_EQ(inbox.sizes.size(), 3u);
    EXPECT_EQ(inbox.sizes[0], 1473u);
    EXPECT_GT(inbox.sizes[1], 1472u);
    EXPECT_EQ(inbox.sizes[2], 1472u);
  }
}

TEST(UdpSocket, a_socket_reports_its_port_and_buffer_sizes) {
  const auto socket = make(options());
  EXPECT_NE(socket->address().port(), 0);
  EXPECT_TRUE(socket->address().same_host(address_of("127.0.0.1")));
  EXPECT_GT(socket->receive_buffer_bytes(), 0);
  EXPECT_GT(socket->send_buffer_bytes(), 0);
}

TEST(UdpSocket, a_taken_port_error_names_the_port) {
  const auto first = make(options());
  const auto second = UdpSocket::make({.address = first->address()});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), Code::unavailable);
  EXPECT_NE(second.status().message().find(first->address().to_string()), std::string::npos) << second.status().message();
}

TEST(UdpSocket, a_foreign_address_error_names_the_address) {
  // an address reserved for documentation, which no host has
  const auto made = UdpSocket::make({.address = address_of("192.0.2.1")});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::unavailable);
  EXPECT_NE(made.status().message().find("192.0.2.1"), std::string::npos);
}

TEST(UdpSocket, make_requires_an_address_and_a_possible_size) {
  EXPECT_EQ(UdpSocket::make({}).status().code(), Code::invalid);
  EXPECT_EQ(UdpSocket::make({.address = address_of("127.0.0.1"), .datagram_bytes_max = 65508}).status().code(), Code::invalid);
  EXPECT_EQ(UdpSocket::make({.address = address_of("127.0.0.1"), .datagram_bytes_max = 55}).status().code(), Code::invalid);
}

TEST(UdpSocket, a_missing_route_is_reported) {
  const auto socket = make(options());
  const auto elsewhere = address_of("::1", 9);  // an IPv6 address, which an IPv4 socket cannot reach
  const Bytes payload(100);
  const auto outcome = socket->send(equal_ones(3, elsewhere, payload));
  EXPECT_EQ(outcome.taken, 0u);
  EXPECT_EQ(outcome.stop, SendStop::other);
  EXPECT_NE(outcome.error, 0);
}

TEST(WrappingCount, goes_on_after_the_last_number) {
  WrappingCount count;
  for (const uint32_t seen : {0x40000000u, 0x80000000u, 0xC0000000u, 0xFFFFFFFFu, 1u, 5u}) count.update(seen);
  EXPECT_EQ(count.total(), 0x100000005ull);
}

TEST(WrappingCount, ignores_late_values) {
  WrappingCount count;
  for (const uint32_t seen : {10u, 7u, 10u, 0u, 12u}) count.update(seen);
  EXPECT_EQ(count.total(), 12u);
}

TEST(SameEndpoint, compares_host_and_port) {
  EXPECT_TRUE(same_endpoint(address_of("10.0.0.1", 5), address_of("10.0.0.1", 5)));
  EXPECT_FALSE(same_endpoint(address_of("10.0.0.1", 5), address_of("10.0.0.1", 6)));
  EXPECT_FALSE(same_endpoint(address_of("10.0.0.1", 5), address_of("10.0.0.2", 5)));
  EXPECT_TRUE(same_endpoint(address_of("2001:db8::1", 5), address_of("2001:db8::1", 5)));
  EXPECT_FALSE(same_endpoint(address_of("2001:db8::1", 5), address_of("2001:db8::1", 6)));
  EXPECT_FALSE(same_endpoint(address_of("2001:db8::1", 5), address_of("2001:db8::2", 5)));
  EXPECT_FALSE(same_endpoint(address_of("10.0.0.1", 5), address_of("::ffff:10.0.0.1", 5)));
  EXPECT_FALSE(same_endpoint(TcpAddress{}, TcpAddress{}));
}

TEST(SameEndpoint, ignores_a_scope_that_is_not_known) {
  auto here = address_of("fe80::1", 5), there = here;
  here.set_scope(2);
  EXPECT_TRUE(same_endpoint(here, there));
  there.set_scope(3);
  EXPECT_FALSE(same_endpoint(here, there));
}

}  // namespace
}  // namespace unisono

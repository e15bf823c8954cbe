// Tests of the kernel's UDP on the loopback interface: IPv4 and IPv6, with and without segmentation offload.
#include "transports/udp/udp_socket.h"

#include <algorithm>
#include <cerrno>
#include <iostream>
#include <string>
#include <tuple>
#include <vector>

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "base/random.h"

namespace unisono {
namespace {

constexpr int patience_ms = 5'000;  // how long a test waits for a datagram before it fails

TcpAddress loopback(int family) {
  auto address = parse_tcp_address(family == AF_INET ? "127.0.0.1" : "::1");
  EXPECT_TRUE(address.ok());
  return address.value();
}

std::unique_ptr<UdpSocket> make(UdpSocketOptions options) {
  auto made = UdpSocket::make(options);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(*made) : nullptr;
}

struct Inbox final : DatagramInbox {
  void arrived(std::span<const InDatagram> batch) override {
    EXPECT_GE(batch.size(), 1u);
    EXPECT_LE(batch.size(), datagrams_per_batch);
    for (const auto& datagram : batch) {
      came.push_back(datagram.came);
      datagrams.emplace_back(datagram.bytes.begin(), datagram.bytes.end());
      senders.push_back(*datagram.from);
    }
  }
  void refused(const TcpAddress& to) override { refusals.push_back(to); }
  std::vector<Bytes> datagrams;
  std::vector<TcpAddress> senders, refusals;
  std::vector<Nanos> came;
};

Nanos monotonic_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return Nanos{time.tv_sec} * second + time.tv_nsec;
}

short events_of(const DatagramSocket& socket, int wait_ms) {
  pollfd wait{socket.wait_handle(), POLLIN, 0};
  return ::poll(&wait, 1, wait_ms) > 0 ? wait.revents : short{0};
}

// Receives until there are `count` datagrams, or until none comes for patience_ms.
void receive_all(DatagramSocket& socket, Inbox& inbox, size_t count) {
  while (inbox.datagrams.size() < count && events_of(socket, patience_ms) != 0) socket.receive(inbox, 1'000'000);
}

Bytes random_bytes(Random& random, size_t count) {
  Bytes bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

// Compares two lists of datagrams and reports only the first difference.
void expect_same(const std::vector<Bytes>& seen, const std::vector<Bytes>& expected) {
  EXPECT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < std::min(seen.size(), expected.size()); ++i) {
    ASSERT_TRUE(seen[i] == expected[i]) << "datagram " << i << ": " << seen[i].size() << " bytes, expected "
                                        << expected[i].size();
  }
}

// Random datagrams, the memory of their payloads, and the bytes that must arrive for each datagram.
struct Batch {
  std::vector<Bytes> payloads;
  std::vector<OutDatagram> datagrams;
  std::vector<Bytes> expected;

  // `sizes` are the sizes of whole datagrams, header included.
  Batch(Random& random, const TcpAddress& to, const std::vector<size_t>& sizes) {
    payloads.reserve(sizes.size());
    for (const auto size : sizes) {
      payloads.push_back(random_bytes(random, size - datagram_header_bytes));
      const auto& payload = payloads.back();
      DatagramHeader header{.op = static_cast<uint32_t>(random.next()),
                            .payload_bytes = static_cast<uint16_t>(payload.size()),
                            .tag = random.next()};
      datagrams.push_back({.to = &to, .header = header, .payload = payload});
      const auto head = std::as_bytes(std::span(&header, 1));
      expected.emplace_back(head.begin(), head.end());
      expected.back().insert(expected.back().end(), payload.begin(), payload.end());
    }
  }
};

bool has_ipv6() {
  static const bool has = [] {
    const bool works = UdpSocket::make({.address = loopback(AF_INET6)}).ok();
    if (!works) std::cout << "NO IPv6 ON THIS HOST: its half of these tests is skipped\n";
    return works;
  }();
  return has;
}

// Test parameters: address family, offload for sending, offload for receiving.
class UdpSocketOf : public testing::TestWithParam<std::tuple<int, bool, bool>> {
 protected:
  void SetUp() override {
    if (family() == AF_INET6 && !has_ipv6()) GTEST_SKIP() << "no IPv6 on this host";
  }
  static int family() { return std::get<0>(GetParam()); }
  static bool sends_runs() { return std::get<1>(GetParam()); }
  static bool receives_runs() { return std::get<2>(GetParam()); }
  static UdpSocketOptions options() {
    return {.address = loopback(family()), .segmentation_offload = sends_runs(), .receive_offload = receives_runs()};
  }
};

INSTANTIATE_TEST_SUITE_P(All, UdpSocketOf,
                         testing::Combine(testing::Values(AF_INET, AF_INET6), testing::Bool(), testing::Bool()),
                         [](const auto& chosen) {
                           return std::string(std::get<0>(chosen.param) == AF_INET ? "ipv4" : "ipv6") +
                                  (std::get<1>(chosen.param) ? "_segmentation" : "") +
                                  (std::get<2>(chosen.param) ? "_aggregation" : "");
                         });

TEST_P(UdpSocketOf, datagrams_of_mixed_sizes_arrive_whole_and_in_order) {
  const uint64_t seed = 7;
  std::cout << "seed " << seed << '\n';
  Random random(seed);
  const auto sender = make(options()), receiver = make(options());
  std::vector<size_t> sizes;
  while (sizes.size() < 1000) {  // runs of equal sizes; some are followed by a datagram of another size
    const size_t size = datagram_header_bytes + random.below(3000);
    sizes.insert(sizes.end(), 1 + random.below(100), size);
    if (random.chance(0.5)) sizes.push_back(datagram_header_bytes + random.below(3000));
  }
  Batch batch(random, receiver->address(), sizes);
  // a change of `confirms` begins a new system call
  for (auto& datagram : batch.datagrams) datagram.confirms = random.chance(0.1);
  Inbox inbox;
  for (size_t at = 0; at < sizes.size();) {  // 30 datagrams at a time fit into any receive buffer
    const auto part = std::span(batch.datagrams).subspan(at, std::min<size_t>(30, sizes.size() - at));
    EXPECT_EQ(sender->send(part), (SendOutcome{.taken = part.size()}));
    at += part.size();
    receive_all(*receiver, inbox, at);
  }
  expect_same(inbox.datagrams, batch.expected);
  for (const auto& from : inbox.senders) EXPECT_TRUE(same_endpoint(from, sender->address())) << from.to_string();
  EXPECT_EQ(sender->counters().sent, sizes.size());
  EXPECT_EQ(receiver->counters().received, sizes.size());
  EXPECT_EQ(sender->counters().sent_in_runs > 0, sender->segmentation_offload());
}

TEST_P(UdpSocketOf, one_batch_goes_to_several_receivers) {
  Random random(1);
  const auto sender = make(options()), first = make(options()), second = make(options());
  Batch batch(random, first->address(), std::vector<size_t>(40, 500));
  std::vector<Bytes> to_first, to_second;
  for (size_t i = 0; i < batch.datagrams.size(); ++i) {
    const bool other = i % 7 < 3;
    if (other) batch.datagrams[i].to = &second->address();
    (other ? to_second : to_first).push_back(batch.expected[i]);
  }
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 40}));
  Inbox at_first, at_second;
  receive_all(*first, at_first, to_first.size());
  receive_all(*second, at_second, to_second.size());
  expect_same(at_first.datagrams, to_first);
  expect_same(at_second.datagrams, to_second);
}

TEST_P(UdpSocketOf, all_sizes_arrive) {
  Random random(2);
  const auto sender = make(options()), receiver = make(options());
  // the largest payload on loopback: 65535 - 28 bytes with IPv4 (largest packet - headers), 65536 - 48 bytes with IPv6 (MTU -
  // headers)
  const size_t largest = family() == AF_INET ? 65507 : 65488;
  for (const size_t size : {size_t{56}, size_t{57}, size_t{1472}, size_t{8972}, size_t{32753}, size_t{32754}, largest}) {
    const Batch batch(random, receiver->address(), {size, size, size});
    Inbox inbox;
    EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 3})) << size;
    receive_all(*receiver, inbox, 3);
    expect_same(inbox.datagrams, batch.expected);
  }
}

TEST_P(UdpSocketOf, a_datagram_that_is_too_long_stops_the_batch_and_only_it_is_lost) {
  Random random(3);
  const auto sender = make(options()), receiver = make(options());
  std::vector<size_t> sizes(5, 1000);
  sizes.push_back(65509);
  sizes.insert(sizes.end(), 5, 1000);
  Batch batch(random, receiver->address(), sizes);
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 5, .stop = SendStop::too_long, .error = EMSGSIZE}));
  EXPECT_EQ(sender->send(std::span(batch.datagrams).subspan(6)), (SendOutcome{.taken = 5}));
  batch.expected.erase(batch.expected.begin() + 5);
  Inbox inbox;
  receive_all(*receiver, inbox, 10);
  expect_same(inbox.datagrams, batch.expected);
  EXPECT_EQ(sender->segmentation_offload(), sends_runs()) << "that was no refusal of runs";
  // The kernel also put the error into the error queue. After one receive() it must no longer wake the process.
  Inbox none;
  EXPECT_TRUE(sender->receive(none, 1).drained);
  EXPECT_EQ(events_of(*sender, 0), 0);
  EXPECT_EQ(sender->send(std::span(batch.datagrams).subspan(5)),
            (SendOutcome{.taken = 0, .stop = SendStop::too_long, .error = EMSGSIZE}));
  EXPECT_TRUE(sender->receive(none, 1).drained);
  EXPECT_EQ(events_of(*sender, 0), 0);
  EXPECT_TRUE(none.refusals.empty());
}

TEST_P(UdpSocketOf, drops_of_the_sockets_own_buffer_are_counted) {
  Random random(4);
  auto small = options();
  small.receive_buffer_bytes = 100'000;
  const auto sender = make(options()), receiver = make(small);
  const Batch batch(random, receiver->address(), std::vector<size_t>(1000, 1472));
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 1000}));
  Inbox inbox;
  size_t sent = 1000;
  const auto known = [&] { return inbox.datagrams.size() + receiver->own_drops(); };
  while (!receiver->receive(inbox, 1).drained) {}
  // on some kernels a datagram shows up a little later, so send one more and look again
  for (int late = 0; late < 100 && !receives_runs() && known() < sent; ++late) {
    sent += sender->send(std::span(batch.datagrams).first(1)).taken;
    if (events_of(*receiver, patience_ms) != 0) receiver->receive(inbox, 1'000'000);
  }
  EXPECT_GT(inbox.datagrams.size(), 0u);
  EXPECT_GT(receiver->own_drops(), 0u);
  EXPECT_LE(known(), sent);
  if (!receives_runs()) {
    EXPECT_EQ(known(), sent);
  }
  EXPECT_EQ(sender->own_drops(), 0u);

  const auto before = receiver->own_drops();
  const auto received = inbox.datagrams.size();
  EXPECT_EQ(sender->send(std::span(batch.datagrams).first(10)), (SendOutcome{.taken = 10}));
  receive_all(*receiver, inbox, received + 10);
  EXPECT_EQ(inbox.datagrams.size(), received + 10);
  EXPECT_EQ(receiver->own_drops(), before) << "nothing new was dropped";
}

TEST_P(UdpSocketOf, a_closed_port_is_counted_and_affects_no_other_receiver) {
  Random random(5);
  const auto sender = make(options()), receiver = make(options());
  const auto closed = make(options())->address();  // the socket is closed here, so nobody listens at this address
  Batch batch(random, receiver->address(), std::vector<size_t>(60, 700));
  std::vector<Bytes> once;
  for (size_t i = 0; i < batch.datagrams.size(); ++i) {
    if (i % 3 == 2) batch.datagrams[i].to = &closed;  // the last datagram is among these; its error shows only in the next call
    else once.push_back(batch.expected[i]);
  }
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 60}));
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 60}));
  auto expected = once;
  expected.insert(expected.end(), once.begin(), once.end());
  Inbox inbox;
  receive_all(*receiver, inbox, expected.size());
  expect_same(inbox.datagrams, expected);

  Inbox sender_inbox;
  EXPECT_NE(events_of(*sender, patience_ms), 0);
  for (int looks = 0; looks < 100 && events_of(*sender, 0) != 0; ++looks) EXPECT_TRUE(sender->receive(sender_inbox, 1).drained);
  EXPECT_TRUE(sender_inbox.datagrams.empty());
  EXPECT_GT(sender_inbox.refusals.size(), 0u);
  EXPECT_LE(sender_inbox.refusals.size(), 40u);
  for (const auto& to : sender_inbox.refusals) EXPECT_TRUE(same_endpoint(to, closed)) << to.to_string();
  EXPECT_EQ(sender->counters().refused, sender_inbox.refusals.size());
  EXPECT_EQ(events_of(*sender, 0), 0) << "nothing is left to wake anybody";
}

TEST_P(UdpSocketOf, receiving_stops_soon_after_the_limit_and_goes_on_where_it_stopped) {
  Random random(6);
  const auto sender = make(options()), receiver = make(options());
  const Batch batch(random, receiver->address(), std::vector<size_t>(300, 100));
  EXPECT_EQ(sender->send(batch.datagrams), (SendOutcome{.taken = 300}));
  Inbox inbox;
  size_t told = receiver->receive(inbox, 1).datagrams;
  EXPECT_EQ(told, inbox.datagrams.size());
  if (!receives_runs()) {
    EXPECT_LT(told, 300u);
  }
  for (bool drained = false; !drained;) {
    const auto outcome = receiver->receive(inbox, 1);
    told += outcome.datagrams;
    drained = outcome.drained;
    EXPECT_EQ(told, inbox.datagrams.size());
  }
  expect_same(inbox.datagrams, batch.expected);
  EXPECT_EQ(receiver->receive(inbox, 1), (ReceiveOutcome{.datagrams = 0, .drained = true}));
}

TEST_P(UdpSocketOf, nothing_is_fragmented) {
  const auto socket = make(options());
  int value = -1;
  socklen_t bytes = sizeof value;
  const bool wide = family() == AF_INET6;
  EXPECT_EQ(::getsockopt(socket->wait_handle(), wide ? IPPROTO_IPV6 : IPPROTO_IP, wide ? IPV6_MTU_DISCOVER : IP_MTU_DISCOVER,
                         &value, &bytes),
            0);
  EXPECT_EQ(value, wide ? IPV6_PMTUDISC_DO : IP_PMTUDISC_DO);
}

TEST_P(UdpSocketOf, an_inbox_may_answer_at_once) {
  struct Echo final : DatagramInbox {
    explicit Echo(DatagramSocket& s) : socket(s) {}
    void arrived(std::span<const InDatagram> batch) override {
      for (const auto& datagram : batch) {
        const OutDatagram answer{.to = datagram.from,
                                 .header = {.op = 99, .payload_bytes = static_cast<uint16_t>(datagram.bytes.size())},
                                 .payload = datagram.bytes};
        EXPECT_EQ(socket.send({&answer, 1}), (SendOutcome{.taken = 1}));
      }
    }
    void refused(const TcpAddress&) override {}
    DatagramSocket& socket;
  };
  Random random(8);
  const auto asking = make(options()), answering = make(options());
  const Batch batch(random, answering->address(), std::vector<size_t>(20, 300));
  EXPECT_EQ(asking->send(batch.datagrams), (SendOutcome{.taken = 20}));
  Echo echo(*answering);
  for (size_t answered = 0; answered < 20 && events_of(*answering, patience_ms) != 0;)
    answered += answering->receive(echo, 100).datagrams;
  Inbox inbox;
  receive_all(*asking, inbox, 20);
  ASSERT_EQ(inbox.datagrams.size(), 20u);
  for (size_t i = 0; i < 20; ++i)
    EXPECT_TRUE(
        std::equal(batch.expected[i].begin(), batch.expected[i].end(), inbox.datagrams[i].begin() + datagram_header_bytes));
}

TEST_P(UdpSocketOf, arrival_times_are_those_of_the_network) {
  Random random(9);
  const auto from = make(options()), to = make(options());
  const Batch early(random, to->address(), std::vector<size_t>(1, 100)),
      late(random, to->address(), std::vector<size_t>(2000, 100));
  const auto begun = monotonic_now();
  EXPECT_EQ(from->send(early.datagrams).taken, 1u);
  const auto sent = monotonic_now();
  EXPECT_EQ(from->send(late.datagrams).taken, 2000u);  // takes long enough to separate the arrival from the fetching
  const auto fetched = monotonic_now();
  Inbox inbox;
  receive_all(*to, inbox, 1);
  ASSERT_GE(inbox.came.size(), 1u);
  // The two clocks are not read at exactly the same moment, because the process may be suspended in between.
  const Nanos between = 100 * microsecond;
  EXPECT_GE(inbox.came[0], begun - between);
  EXPECT_LE(inbox.came[0], sent + std::max(between, (fetched - sent) / 2));
}

}  // namespace
}  // namespace unisono

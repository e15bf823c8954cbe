// Virtual connections without faults: how they open and end, what a kernel queues, and what a watcher reports.
#include "sim/tcp/virtual_streams.h"

#include <gtest/gtest.h>

#include <array>

#include "sim/tcp/stream_pair_test_support.h"
#include "tests/conformance/stream_promises.h"

namespace unisono::conformance {
namespace {

class VirtualPlace final : public StreamPlace {
 public:
  StreamNetwork& dialling() override { return pair_.networks[sim::dialler]; }
  StreamNetwork& listening() override { return pair_.networks[sim::acceptor]; }
  InterfaceAddress address() override { return {.interface = "virtual0", .address = *parse_tcp_address("10.0.0.2")}; }
  void pass() override { pair_.wait(1 * millisecond); }

 private:
  sim::StreamPair pair_;
};

INSTANTIATE_TEST_SUITE_P(Virtual, StreamPromise, testing::Values([] { return std::make_unique<VirtualPlace>(); }));

}  // namespace
}  // namespace unisono::conformance

namespace unisono::sim {
namespace {

using Tags = std::vector<uint64_t>;

Tags ready(StreamWatcher& watcher, size_t tags_max = 8) {
  Tags tags(tags_max);
  tags.resize(watcher.ready(tags));
  return tags;
}

TEST(VirtualStreams, connecting_takes_a_round_trip) {
  StreamPair pair({.delay = 1 * millisecond, .jitter = 0});
  const auto socket = pair.dial();
  pair.wait(2 * millisecond - 1);
  EXPECT_EQ(socket->connected(), std::nullopt);
  pair.wait(1);
  EXPECT_EQ(socket->connected(), 0);
}

TEST(VirtualStreams, both_sides_know_the_addresses) {
  StreamPair pair;
  pair.connect();
  EXPECT_EQ(pair.sockets[dialler]->remote().to_string(), pair.address().to_string());
  EXPECT_EQ(pair.sockets[acceptor]->local().to_string(), pair.address().to_string());
  EXPECT_EQ(pair.sockets[acceptor]->remote().to_string(), pair.sockets[dialler]->local().to_string());
  EXPECT_EQ(pair.sockets[dialler]->local().to_string().substr(0, 9), "10.0.0.1:");
}

TEST(VirtualStreams, a_port_without_a_listener_refuses) {
  StreamPair pair;
  auto to = pair.address();
  to.set_port(9);
  int error = 0;
  const auto socket = pair.networks[dialler].connect(to, {}, error);
  pair.wait(10 * millisecond);
  EXPECT_EQ(socket->connected(), ECONNREFUSED);
}

TEST(VirtualStreams, an_address_without_a_host_does_not_answer) {
  StreamPair pair;
  const auto socket = pair.dial("10.0.0.9");
  pair.wait(120 * second);
  EXPECT_EQ(socket->connected(), std::nullopt);
  pair.wait(10 * second);
  EXPECT_EQ(socket->connected(), ETIMEDOUT);
}

TEST(VirtualStreams, a_full_accept_queue_does_not_answer_until_there_is_space) {
  StreamPair pair({.backlog = 1});
  const auto first = pair.dial();
  pair.wait(10 * millisecond);
  const auto second_socket = pair.dial();
  pair.wait(10 * millisecond);
  EXPECT_EQ(first->connected(), 0);
  EXPECT_EQ(second_socket->connected(), std::nullopt);
  const auto accepted = pair.listener->accept().socket;
  pair.wait(2 * second);
  EXPECT_EQ(second_socket->connected(), 0);
}

TEST(VirtualStreams, processes_of_one_host_share_its_ports) {
  StreamPair pair;
  VirtualStreams other(pair.world, pair.world.add_process(pair.hosts[acceptor]));
  const auto watcher = std::move(*other.make_watcher(nullptr, 0));
  EXPECT_FALSE(other.listen({.port = pair.listener->port()}, *watcher, 0).ok());
  const auto listener = std::move(*other.listen({}, *watcher, 0));
  auto to = pair.address();
  to.set_port(listener->port());
  int error = 0;
  const auto socket = pair.networks[dialler].connect(to, {}, error);
  pair.wait(10 * millisecond);
  EXPECT_TRUE(listener->accept().socket);
  EXPECT_FALSE(pair.listener->accept().socket);
}

TEST(VirtualStreams, a_closed_listener_resets_what_waits) {
  StreamPair pair;
  const auto socket = pair.dial();
  pair.wait(10 * millisecond);
  pair.listener.reset();
  pair.wait(10 * millisecond);
  bool ended = false;
  Bytes bytes(1);
  EXPECT_EQ(read_some(*socket, bytes, ended), -ECONNRESET);
}

// Each byte of the stream says where it stands.
TEST(VirtualStreams, all_bytes_arrive_once_and_in_order) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    StreamPair pair({.seed = seed,
                     .send_queue_bytes = 1 + static_cast<size_t>(mix64(seed) % 400),
                     .receive_queue_bytes = 1 + static_cast<size_t>(mix64(seed + 100) % 400),
                     .segment_bytes_max = 1 + static_cast<size_t>(mix64(seed + 200) % 100),
                     .short_write = 0.5,
                     .short_read = 0.5,
                     .acknowledgement_delay = 200 * microsecond});
    SCOPED_TRACE(seed);
    pair.connect();
    Bytes sent(5000), received;
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(mix64(i));
    size_t written = 0;
    bool ended = false;
    while (!ended && pair.world.now() < 100 * second) {
      if (written < sent.size()) {
        const std::array<iovec, 2> parts{
            iovec{&sent[written], std::min<size_t>(30, sent.size() - written)},
            iovec{sent.data() + std::min(sent.size(), written + 30), sent.size() - std::min(sent.size(), written + 30)}};
        written += static_cast<size_t>(pair.sockets[dialler]->write(parts.data(), 2));
        if (written == sent.size()) pair.sockets[dialler]->shut_down();
      }
      Bytes part(77);
      const auto count = read_some(*pair.sockets[acceptor], part, ended);
      ASSERT_GE(count, 0);
      received.insert(received.end(), part.begin(), part.begin() + count);
      pair.wait(50 * microsecond);
    }
    EXPECT_EQ(received, sent);
    pair.wait(10 * millisecond);
    EXPECT_EQ(pair.unacknowledged(dialler), 0u);
  }
}

TEST(VirtualStreams, a_write_takes_what_fits_into_the_queue) {
  StreamPair pair({.send_queue_bytes = 1000, .receive_queue_bytes = 100});
  pair.connect();
  EXPECT_EQ(pair.write(dialler, 600), 600);
  EXPECT_EQ(pair.write(dialler, 600), 400);
  EXPECT_EQ(pair.write(dialler, 600), 0);
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.write(dialler, 600), 100) << "the receiver's kernel has taken 100";
}

TEST(VirtualStreams, short_writes_spare_the_first_bytes) {
  StreamPair pair({.short_write = 1});
  pair.connect();
  EXPECT_EQ(pair.write(dialler, 160), 160);
  EXPECT_LT(pair.write(dialler, 1u << 20), 1 << 16);
}

TEST(VirtualStreams, bytes_arrive_before_they_are_acknowledged) {
  StreamPair pair({.delay = 1 * millisecond, .jitter = 0});
  pair.connect();
  pair.write(dialler, 10);
  pair.wait(2 * millisecond - 1);
  EXPECT_EQ(pair.unacknowledged(dialler), 10u);
  EXPECT_EQ(pair.read(acceptor), 10);
  pair.wait(1);
  EXPECT_EQ(pair.unacknowledged(dialler), 0u);
}

TEST(VirtualStreams, a_peeked_byte_stays) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 2, std::byte{9});
  pair.wait(10 * millisecond);
  Bytes byte(1);
  bool ended = true;
  EXPECT_EQ(pair.sockets[acceptor]->peek(byte, ended), 1);
  EXPECT_EQ(byte[0], std::byte{9});
  EXPECT_FALSE(ended);
  EXPECT_EQ(pair.read(acceptor), 2);
}

TEST(VirtualStreams, the_end_stands_behind_the_bytes) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 10'000);
  pair.sockets[dialler]->shut_down();
  EXPECT_EQ(pair.write(dialler, 1), -EPIPE);
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.read(acceptor), 10'000);
  EXPECT_EQ(pair.read(acceptor), StreamPair::end_of_stream);
  EXPECT_EQ(pair.read(acceptor), StreamPair::end_of_stream);
  EXPECT_EQ(pair.write(acceptor, 5), 5) << "the other direction goes on";
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.read(dialler), 5);
}

TEST(VirtualStreams, a_closed_socket_still_sends_its_queue) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 1000);
  pair.sockets[dialler].reset();
  ptrdiff_t total = 0;
  for (int i = 0; i < 100; ++i) {
    pair.wait(1 * millisecond);
    if (const auto count = pair.read(acceptor); count > 0) total += count;
  }
  EXPECT_EQ(total, 1000);
  EXPECT_EQ(pair.read(acceptor), StreamPair::end_of_stream);
}

TEST(VirtualStreams, nothing_is_left_when_both_sides_have_closed) {
  StreamPair pair;
  pair.connect();
  EXPECT_EQ(pair.world.held_connections(pair.processes[dialler]), 1u);
  EXPECT_EQ(pair.world.held_connections(pair.processes[acceptor]), 1u);
  pair.sockets[dialler].reset();
  pair.wait(10 * millisecond);
  pair.sockets[acceptor].reset();
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.world.connection_count(), 0u);
}

TEST(VirtualStreams, an_end_that_is_sent_again_is_acknowledged_again) {
  StreamPair pair;
  pair.connect();
  pair.sockets[dialler].reset();
  pair.wait(10 * millisecond);
  pair.world.block(1, dialler, pair.world.now() + 100 * millisecond);
  pair.sockets[acceptor]->shut_down();  // its acknowledgement is lost
  pair.wait(10 * second);
  EXPECT_EQ(pair.world.open_connections().size(), 1u) << "the second one was not answered with a reset";
  EXPECT_EQ(pair.read(acceptor), StreamPair::end_of_stream);
}

TEST(VirtualStreams, the_kernel_of_a_stopped_process_goes_on) {
  StreamPair pair;
  pair.connect();
  pair.world.stop(pair.processes[acceptor]);
  EXPECT_FALSE(pair.world.runs(pair.processes[acceptor]));
  pair.write(dialler, 100);
  pair.wait(1 * second);
  EXPECT_EQ(pair.unacknowledged(dialler), 0u);
  pair.world.resume(pair.processes[acceptor]);
  EXPECT_TRUE(pair.world.runs(pair.processes[acceptor]));
  EXPECT_EQ(pair.read(acceptor), 100);
}

TEST(VirtualStreams, records_arrive_and_are_acknowledged_whole) {
  int partly = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    StreamPair pair({.seed = seed, .delay = 1 * millisecond, .jitter = 0, .segment_bytes_max = 40, .record_bytes_max = 100});
    pair.connect();
    pair.world.slow_down(pair.connection(), 100'000);
    pair.write(dialler, 300);
    pair.wait(2500 * microsecond);  // about half of it has arrived
    pair.world.block(pair.connection(), dialler, never);
    pair.wait(2 * millisecond);  // acknowledgements arrive
    const auto count = pair.read(acceptor);
    EXPECT_EQ(static_cast<uint64_t>(count), 300 - pair.unacknowledged(dialler));
    const auto received = pair.world.received_bytes(pair.connection(), acceptor);
    EXPECT_LE(static_cast<uint64_t>(count), received);
    partly += static_cast<uint64_t>(count) < received ? 1 : 0;
    pair.world.reset(pair.connection(), true, true);
    EXPECT_EQ(pair.read(acceptor), -ECONNRESET) << "a part of a record is lost";
  }
  EXPECT_GT(partly, 30);
}

// Watchers ----------------------------------------------------------------------------------------------------------

TEST(VirtualStreams, a_watcher_reports_until_the_cause_is_gone) {
  StreamPair pair;
  pair.connect();
  auto& watcher = *pair.watchers[acceptor];
  ASSERT_TRUE(pair.sockets[acceptor]->watch(watcher, true, false, 5));
  EXPECT_EQ(ready(watcher), Tags{});
  pair.write(dialler, 10);
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(watcher), Tags{5});
  EXPECT_EQ(ready(watcher), Tags{5});
  pair.read(acceptor);
  EXPECT_EQ(ready(watcher), Tags{});
}

TEST(VirtualStreams, a_watcher_reports_space_for_writing) {
  StreamPair pair({.send_queue_bytes = 10});
  auto& watcher = *pair.watchers[dialler];
  pair.connect();
  ASSERT_TRUE(pair.sockets[dialler]->watch(watcher, false, true, 6));
  EXPECT_EQ(ready(watcher), Tags{6});
  pair.write(dialler, 10);
  EXPECT_EQ(ready(watcher), Tags{});
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(watcher), Tags{6});
}

TEST(VirtualStreams, a_watcher_reports_a_new_connection_an_arrival_and_an_end) {
  StreamPair pair;
  pair.sockets[dialler] = pair.dial();
  ASSERT_TRUE(pair.sockets[dialler]->watch(*pair.watchers[dialler], false, true, 3));
  EXPECT_EQ(ready(*pair.watchers[dialler]), Tags{});
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(*pair.watchers[dialler]), Tags{3});
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{0});
  pair.sockets[acceptor] = pair.listener->accept().socket;
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{});
  ASSERT_TRUE(pair.sockets[acceptor]->watch(*pair.watchers[acceptor], true, false, 4));
  pair.sockets[dialler].reset();
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{4});
  ASSERT_TRUE(pair.sockets[acceptor]->watch(*pair.watchers[acceptor], false, false, 4));
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{});
}

TEST(VirtualStreams, every_ready_socket_has_its_turn) {
  StreamPair pair;
  std::vector<std::unique_ptr<StreamSocket>> sockets;
  for (uint64_t tag = 1; tag <= 3; ++tag) {
    sockets.push_back(pair.dial());
    ASSERT_TRUE(sockets.back()->watch(*pair.watchers[dialler], false, true, tag));
  }
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(*pair.watchers[dialler], 2), (Tags{1, 2}));
  EXPECT_EQ(ready(*pair.watchers[dialler], 2), (Tags{3, 1}));
}

TEST(VirtualStreams, a_watcher_reports_for_an_inner_one) {
  StreamPair pair;
  pair.connect();
  const auto inner = std::move(*pair.networks[acceptor].make_watcher(pair.watchers[acceptor].get(), 77));
  ASSERT_TRUE(pair.sockets[acceptor]->watch(*inner, true, false, 1));
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{});
  pair.write(dialler, 1);
  pair.wait(10 * millisecond);
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{77});
  ASSERT_TRUE(pair.sockets[acceptor]->watch(*pair.watchers[acceptor], true, false, 2));
  EXPECT_EQ(ready(*pair.watchers[acceptor]), Tags{2}) << "the socket has moved";
}

}  // namespace
}  // namespace unisono::sim

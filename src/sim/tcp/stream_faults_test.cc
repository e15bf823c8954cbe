// The faults of virtual connections, one by one.
#include <gtest/gtest.h>

#include "sim/tcp/stream_pair_test_support.h"
#include "sim/tcp/stream_relay.h"

namespace unisono::sim {
namespace {

// Reads until nothing comes any more. Returns the number of bytes.
ptrdiff_t read_all(StreamPair& pair, int side) {
  ptrdiff_t total = 0;
  for (ptrdiff_t count = pair.read(side); count > 0; count = pair.read(side)) total += count;
  return total;
}

// Resets ------------------------------------------------------------------------------------------------------------

TEST(StreamFaults, after_a_reset_received_bytes_stay_readable) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 1000);
  pair.wait(10 * millisecond);
  ASSERT_EQ(pair.unacknowledged(dialler), 0u);
  pair.world.reset(pair.connection(), true, true);
  EXPECT_EQ(pair.read(acceptor), 1000);
  EXPECT_EQ(pair.read(acceptor), -ECONNRESET);
  EXPECT_EQ(pair.read(acceptor), StreamPair::end_of_stream);
  EXPECT_EQ(pair.write(dialler, 1), -ECONNRESET);
  EXPECT_EQ(pair.write(dialler, 1), -EPIPE);
}

TEST(StreamFaults, a_reset_loses_what_is_under_way) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 1000);
  pair.world.reset(pair.connection(), true, false);
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.unacknowledged(dialler), 1000u);
  EXPECT_EQ(pair.read(acceptor), 0) << "this side knows nothing of the reset";
}

TEST(StreamFaults, a_side_without_the_notice_learns_it_when_it_sends) {
  StreamPair pair;
  pair.connect();
  pair.world.reset(pair.connection(), true, false);
  pair.wait(1 * second);
  EXPECT_EQ(pair.read(acceptor), 0);
  EXPECT_EQ(pair.write(acceptor, 10), 10) << "it writes into nothing";
  EXPECT_EQ(pair.write(acceptor, 10), 10);
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.write(acceptor, 10), -ECONNRESET);
}

TEST(StreamFaults, a_lost_notice_is_found_by_probes) {
  StreamPair pair;
  pair.connect();
  pair.world.reset(pair.connection(), false, false);
  pair.wait(9 * second);
  EXPECT_EQ(pair.read(acceptor), 0);
  pair.wait(2 * second);
  EXPECT_EQ(pair.read(acceptor), -ECONNRESET);
}

TEST(StreamFaults, a_watcher_reports_a_reset_for_either_event) {
  for (const bool readable : {true, false}) {
    StreamPair pair;
    pair.connect();
    ASSERT_TRUE(pair.sockets[acceptor]->watch(*pair.watchers[acceptor], readable, !readable, 5));
    pair.world.reset(pair.connection(), true, true);
    uint64_t tag = 0;
    EXPECT_EQ(pair.watchers[acceptor]->ready(std::span(&tag, 1)), 1u);
    EXPECT_EQ(tag, 5u);
  }
}

TEST(StreamFaults, closing_with_unread_bytes_resets_and_loses_the_own_queue) {
  bool overtaken = false, in_order = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    StreamPair pair({.seed = seed, .receive_queue_bytes = 100});
    pair.connect();
    pair.write(dialler, 10);
    pair.wait(10 * millisecond);
    pair.write(acceptor, 1000);
    pair.sockets[acceptor].reset();
    pair.wait(10 * millisecond);
    const auto total = read_all(pair, dialler);
    EXPECT_LE(total, 100) << "the rest had not been sent";
    overtaken |= total == 0;
    in_order |= total == 100;
    EXPECT_EQ(pair.write(dialler, 1), -EPIPE);
  }
  EXPECT_TRUE(overtaken);
  EXPECT_TRUE(in_order);
}

TEST(StreamFaults, a_reset_of_the_peer_destroys_what_waits_to_be_sent) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 1000);
  pair.wait(10 * millisecond);
  pair.sockets[acceptor].reset();  // with 100 unread bytes
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.unacknowledged(dialler), 900u);
  EXPECT_EQ(pair.write(dialler, 1), -ECONNRESET);
  EXPECT_EQ(pair.world.connection_count(), 1u) << "only the socket of the dialler is left";
}

TEST(StreamFaults, bytes_for_a_closed_socket_are_answered_with_a_reset) {
  StreamPair pair;
  pair.connect();
  pair.sockets[acceptor].reset();
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.read(dialler), StreamPair::end_of_stream);
  EXPECT_EQ(pair.write(dialler, 10), 10);
  pair.wait(10 * millisecond);
  EXPECT_EQ(pair.write(dialler, 10), -EPIPE) << "as Linux says after the peer's end";
}

TEST(StreamFaults, bytes_may_arrive_and_be_acknowledged_just_before_close) {
  bool arrived = false;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    StreamPair pair({.seed = seed, .late_arrival = 1});
    pair.connect();
    pair.write(dialler, 100);
    EXPECT_EQ(pair.read(acceptor), 0);
    pair.sockets[acceptor].reset();
    arrived |= pair.unacknowledged(dialler) == 0;
  }
  EXPECT_TRUE(arrived);
}

// Outages -----------------------------------------------------------------------------------------------------------

TEST(StreamFaults, after_an_outage_everything_is_sent_again) {
  for (const int from : {dialler, acceptor}) {
    StreamPair pair({.segment_bytes_max = 100});
    pair.connect();
    pair.world.block(pair.hosts[from], pair.hosts[1 - from], pair.world.now() + 8 * second);
    pair.write(dialler, 10'000);
    pair.wait(7 * second);
    const auto stuck = pair.sockets[dialler]->unacknowledged();
    EXPECT_GE(stuck.repeats, 4u);
    EXPECT_EQ(stuck.bytes, 10'000u);
    EXPECT_EQ(stuck.segment_bytes, 100u);
    EXPECT_GT(stuck.segments, 0u);
    EXPECT_EQ(pair.unacknowledged(dialler), 10'000u);
    pair.wait(5 * second);
    EXPECT_EQ(pair.unacknowledged(dialler), 10'000u) << "the sixth repetition comes after 12.6 s";
    pair.wait(1 * second);
    EXPECT_EQ(pair.unacknowledged(dialler), 0u);
    EXPECT_EQ(read_all(pair, acceptor), 10'000);
    EXPECT_EQ(pair.sockets[dialler]->unacknowledged().repeats, 0u);
  }
}

TEST(StreamFaults, a_host_that_does_not_answer_is_silent) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 10);
  pair.wait(10 * millisecond);
  pair.world.block(pair.hosts[acceptor], pair.hosts[dialler], never);
  pair.write(dialler, 10);
  pair.wait(4 * second);
  EXPECT_FALSE(pair.sockets[dialler]->host_is_silent(5 * second));
  pair.wait(2 * second);
  EXPECT_TRUE(pair.sockets[dialler]->host_is_silent(5 * second));
  EXPECT_EQ(pair.read(acceptor), 20) << "the other direction is not blocked";
}

TEST(StreamFaults, data_that_no_host_acknowledges_awaits_the_host) {
  StreamPair pair;
  pair.connect();
  pair.write(dialler, 10);
  pair.wait(10 * millisecond);
  EXPECT_FALSE(pair.sockets[dialler]->awaits_host(millisecond)) << "all is acknowledged";
  pair.world.block(pair.hosts[acceptor], pair.hosts[dialler], never);
  pair.write(dialler, 10);
  pair.wait(100 * millisecond);
  EXPECT_TRUE(pair.sockets[dialler]->awaits_host(100 * millisecond));
  EXPECT_FALSE(pair.sockets[dialler]->awaits_host(second));
}

TEST(StreamFaults, data_that_waits_for_a_paused_reader_does_not_await_the_host) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 1000);
  pair.wait(10 * second);
  EXPECT_GT(pair.unacknowledged(dialler), 0u);
  EXPECT_FALSE(pair.sockets[dialler]->awaits_host(100 * millisecond));
}

TEST(StreamFaults, a_paused_reader_is_not_silent) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 1000);
  pair.wait(100 * second);
  EXPECT_EQ(pair.unacknowledged(dialler), 900u);
  EXPECT_FALSE(pair.sockets[dialler]->host_is_silent(5 * second)) << "its kernel answers the probes";
  ptrdiff_t total = 0;
  for (int i = 0; i < 20; ++i, pair.wait(1 * millisecond)) total += read_all(pair, acceptor);
  EXPECT_EQ(total, 1000);
}

TEST(StreamFaults, a_host_that_is_gone_while_its_reader_is_paused_is_silent) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 1000);
  pair.wait(1 * second);
  pair.world.remove_host(pair.hosts[acceptor]);
  pair.wait(6 * second);
  EXPECT_TRUE(pair.sockets[dialler]->host_is_silent(5 * second));
}

TEST(StreamFaults, a_lost_window_is_found_by_a_probe) {
  StreamPair pair({.receive_queue_bytes = 100});
  pair.connect();
  pair.write(dialler, 200);
  pair.wait(10 * millisecond);
  pair.world.block(pair.connection(), acceptor, pair.world.now() + 10 * millisecond);
  EXPECT_EQ(pair.read(acceptor), 100);  // what it says of its window is lost
  pair.wait(20 * millisecond);
  EXPECT_EQ(pair.read(acceptor), 0);
  pair.wait(1 * second);
  EXPECT_EQ(pair.read(acceptor), 100);
}

TEST(StreamFaults, a_connection_that_nothing_gets_through_times_out) {
  StreamPair pair;
  pair.connect();
  pair.world.block(pair.connection(), dialler, never);
  pair.world.block(pair.connection(), acceptor, never);
  pair.write(dialler, 10);
  pair.wait(29 * second);
  EXPECT_EQ(pair.read(acceptor), 0);
  pair.wait(2 * second);
  EXPECT_EQ(pair.read(acceptor), -ETIMEDOUT) << "four keep-alive probes got no answer";
  EXPECT_EQ(pair.read(dialler), 0);
  pair.wait(1000 * second);
  EXPECT_EQ(pair.read(dialler), -ETIMEDOUT) << "fifteen repetitions got no answer";
}

TEST(StreamFaults, a_blocked_direction_keeps_connections_from_being_made) {
  for (const int from : {dialler, acceptor}) {
    StreamPair pair;
    pair.world.block(pair.hosts[from], pair.hosts[1 - from], pair.world.now() + 2 * second);
    const auto socket = pair.dial();
    pair.wait(2 * second);
    EXPECT_EQ(socket->connected(), std::nullopt);
    pair.wait(2 * second);
    EXPECT_EQ(socket->connected(), 0) << "the SYN was sent again after 1 s and after 3 s";
    EXPECT_TRUE(pair.listener->accept().socket);
  }
}

TEST(StreamFaults, a_slow_connection_takes_its_time) {
  StreamPair pair;
  pair.connect();
  pair.world.slow_down(pair.connection(), 1000);
  pair.write(dialler, 10'000);
  pair.wait(5 * second);
  const auto half = read_all(pair, acceptor);
  EXPECT_GT(half, 3000);
  EXPECT_LT(half, 6000);
  pair.wait(6 * second);
  EXPECT_EQ(half + read_all(pair, acceptor), 10'000);
}

// Processes and hosts -----------------------------------------------------------------------------------------------

TEST(StreamFaults, the_kernel_closes_the_sockets_of_a_crashed_process) {
  for (const bool unread : {false, true}) {
    StreamPair pair;
    pair.connect();
    pair.write(acceptor, 100);
    if (unread) pair.write(dialler, 1);
    pair.wait(10 * millisecond);
    pair.world.crash(pair.processes[acceptor]);
    pair.wait(10 * millisecond);
    EXPECT_EQ(pair.read(dialler), 100);
    EXPECT_EQ(pair.read(dialler), unread ? -ECONNRESET : StreamPair::end_of_stream);
    EXPECT_EQ(pair.read(acceptor), -EBADF);
    EXPECT_EQ(pair.write(acceptor, 1), -EBADF);
    EXPECT_EQ(pair.world.held_connections(pair.processes[acceptor]), 0u);
    const auto again = pair.dial();
    pair.wait(10 * millisecond);
    EXPECT_EQ(again->connected(), ECONNREFUSED);
  }
}

TEST(StreamFaults, a_host_that_is_gone_answers_nothing) {
  StreamPair pair;
  pair.connect();
  pair.world.remove_host(pair.hosts[acceptor]);
  EXPECT_FALSE(pair.world.alive(pair.processes[acceptor]));
  const auto again = pair.dial();
  pair.wait(29 * second);
  EXPECT_EQ(pair.read(dialler), 0);
  EXPECT_EQ(again->connected(), std::nullopt);
  pair.wait(2 * second);
  EXPECT_EQ(pair.read(dialler), -ETIMEDOUT) << "keep-alive probes got no answer";
}

TEST(StreamFaults, a_host_can_be_reached_at_its_new_address_only) {
  StreamPair pair;
  pair.connect();
  pair.world.change_addresses(pair.hosts[acceptor], {"10.0.0.3"});
  EXPECT_EQ((*pair.networks[acceptor].interfaces())[0].address.to_string(), "10.0.0.3:0");
  pair.write(dialler, 10);
  const auto at_old = pair.dial(), at_new = pair.dial("10.0.0.3");
  pair.wait(1 * second);
  EXPECT_EQ(pair.read(acceptor), 0);
  EXPECT_EQ(at_old->connected(), std::nullopt);
  EXPECT_EQ(at_new->connected(), 0);
  int error = 0;
  const std::vector<TcpAddress> sources{pair.address("10.0.0.2")};
  EXPECT_FALSE(pair.networks[acceptor].connect(pair.address("10.0.0.1"), sources, error));
  EXPECT_EQ(error, EADDRNOTAVAIL);
}

// Relays ------------------------------------------------------------------------------------------------------------

class RelayedStreams : public testing::Test {
 protected:
  RelayedStreams()
      : host(pair.world.add_host({"10.0.0.5"})),
        network(pair.world, pair.world.add_process(host)),
        relay(network, pair.address(), 1000) {
    auto to = pair.address("10.0.0.5");
    to.set_port(relay.port());
    int error = 0;
    pair.sockets[dialler] = pair.networks[dialler].connect(to, {}, error);
    run(10);
    pair.sockets[acceptor] = pair.listener->accept().socket;
  }
  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      pair.wait(1 * millisecond);
      while (relay.step()) continue;
    }
  }

  StreamPair pair;
  HostIndex host;
  VirtualStreams network;
  StreamRelay relay;
};

TEST_F(RelayedStreams, both_sides_see_the_relay) {
  EXPECT_EQ(pair.sockets[dialler]->remote().to_string().substr(0, 9), "10.0.0.5:");
  EXPECT_EQ(pair.sockets[acceptor]->remote().to_string().substr(0, 9), "10.0.0.5:");
}

TEST_F(RelayedStreams, bytes_and_ends_go_both_ways) {
  pair.write(dialler, 100);
  pair.write(acceptor, 50);
  pair.sockets[acceptor]->shut_down();
  run(10);
  EXPECT_EQ(pair.read(acceptor), 100);
  EXPECT_EQ(pair.read(dialler), 50);
  EXPECT_EQ(pair.read(dialler), StreamPair::end_of_stream);
  pair.sockets[dialler].reset();
  run(10);
  EXPECT_EQ(relay.count(), 0u);
}

TEST_F(RelayedStreams, a_relay_loses_bytes_that_it_has_acknowledged) {
  pair.world.block(host, pair.hosts[acceptor], pair.world.now() + 1 * second);
  ptrdiff_t written = 0;
  for (int i = 0; i < 100; ++i) {
    written += pair.write(dialler, 1000);
    run(1);
  }
  const auto acknowledged = written - static_cast<ptrdiff_t>(pair.unacknowledged(dialler));
  EXPECT_GT(relay.buffered_bytes(), 0u);
  relay.drop_all();
  ptrdiff_t total = 0;
  for (int i = 0; i < 50; ++i) {
    run(100);
    total += read_all(pair, acceptor);
  }
  EXPECT_LT(total, acknowledged);
}

// Runs --------------------------------------------------------------------------------------------------------------

TEST(StreamFaults, equal_seeds_give_equal_runs) {
  const auto run = [](uint64_t seed) {
    StreamPair pair({.seed = seed, .short_write = 0.5, .short_read = 0.5, .acknowledgement_delay = millisecond});
    pair.world.keep_trace(10'000);
    pair.connect();
    for (int i = 0; i < 50; ++i) {
      pair.write(dialler, 1000);
      pair.wait(100 * microsecond);
      pair.read(acceptor, 500);
    }
    return pair.world.trace();
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
  EXPECT_NE(run(1).find("side 0 sends bytes"), std::string::npos);
}

}  // namespace
}  // namespace unisono::sim

// Single situations of TCP links that a run of tcp_links_test has found.
#include <gtest/gtest.h>

#include <optional>

#include "sim/tcp/link_processes_test_support.h"
#include "sim/tcp/stream_pair_test_support.h"

namespace unisono::sim {
namespace {

// Process 0 dials process 1.
class TcpSilence : public testing::Test {
 protected:
  void make(LinksPlan plan) {
    all.emplace(plan);
    all->may_lose = true;
    all->add_link(0, 1);
    all->add_link(1, 0);
  }
  // Polls both, as their transports ask for it, until `done` or the time limit.
  template <typename Done>
  bool until(Nanos limit, Done done) {
    auto& world = all->world();
    for (const auto end = world.now() + limit; !done();) {
      if (world.now() > end) return false;
      for (const uint32_t i : {0, 1}) {
        if (all->alive(i)) all->poll(i);
      }
      auto next = world.next_event();
      for (const uint32_t i : {0, 1}) {
        if (all->alive(i)) next = std::min(next, all->peer(i).transport->next_deadline());
      }
      all->wait(std::clamp<Nanos>(next - world.now(), microsecond, 1 * second));
    }
    return true;
  }
  bool is(uint32_t i, LinkState state) { return all->state(i, 1 - i) == state; }

  std::optional<LinkProcesses> all;
};

TEST_F(TcpSilence, a_dial_that_lacks_one_stream_does_not_wake_for_the_others) {
  make({.transport = {.streams = 2}});
  ASSERT_TRUE(until(1 * second, [&] { return all->world().dials() == 2; }));
  ASSERT_TRUE(until(1 * second, [&] { return all->world().open_connections().size() == 2; }));
  all->world().block(2, acceptor, never);  // the reply to the hello on the second stream is lost
  ASSERT_TRUE(until(1 * second, [&] { return is(1, LinkState::up); }));
  all->peer(1).send_frame(0, 1000);
  for (int i = 0; i < 10; ++i) all->wait(10 * millisecond), all->peer(0).transport->poll(all->world().now(), all->peer(0));
  EXPECT_TRUE(is(0, LinkState::connecting));
  EXPECT_TRUE(all->peer(0).transport->arm());
}

TEST_F(TcpSilence, a_process_that_sends_and_sleeps_learns_that_the_host_is_gone) {
  make({.sleeps = true});
  ASSERT_TRUE(until(1 * second, [&] { return is(0, LinkState::up) && is(1, LinkState::up); }));
  until(20 * second, [] { return false; });
  all->world().remove_host(1);
  all->peer(1).transport.reset();
  all->peer(0).send_frame(1, 10);
  EXPECT_TRUE(until(60 * second, [&] { return is(0, LinkState::lost); }));
}

TEST_F(TcpSilence, an_acceptor_whose_reply_is_never_acknowledged_gets_another_connection) {
  make({});
  ASSERT_TRUE(until(1 * second, [&] { return !all->world().open_connections().empty(); }));
  all->world().block(1, acceptor, never);
  ASSERT_TRUE(until(1 * second, [&] { return is(1, LinkState::up); }));
  all->world().block(1, dialler, never);
  ASSERT_TRUE(until(10 * second, [&] { return is(0, LinkState::up); }));
  until(60 * second, [] { return false; });
  EXPECT_TRUE(is(0, LinkState::up) && is(1, LinkState::up));
}

TEST_F(TcpSilence, an_acceptor_whose_reply_is_never_acknowledged_loses_the_link_if_no_dial_follows) {
  make({});
  ASSERT_TRUE(until(1 * second, [&] { return !all->world().open_connections().empty(); }));
  all->world().block(HostIndex{1}, HostIndex{0}, never);
  ASSERT_TRUE(until(1 * second, [&] { return is(1, LinkState::up); }));
  all->world().block(HostIndex{0}, HostIndex{1}, never);
  EXPECT_TRUE(until(60 * second, [&] { return is(1, LinkState::lost); }));
}

}  // namespace
}  // namespace unisono::sim

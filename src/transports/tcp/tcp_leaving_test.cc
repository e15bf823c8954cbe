// Tests of links that end in order, and whose connections break meanwhile.
#include <gtest/gtest.h>

#include "transports/tcp/tcp_healing_test_support.h"

namespace unisono::conformance {
namespace {

using TcpLeaving = TcpHealing;

TEST_P(TcpLeaving, a_peer_that_has_left_is_lost_without_a_redial) {
  const auto dials = net_a.dials();
  b->close(0);
  settle();
  ASSERT_EQ(sink_a->losses[0].size(), 1u);
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  EXPECT_NE(loss_of_a().message().find("closed the connection"), std::string::npos) << loss_of_a().message();
  EXPECT_EQ(net_a.dials(), dials);
  EXPECT_EQ(sink_a->fates[0], PeerFate::ended);
}

TEST_P(TcpLeaving, the_last_frames_of_a_peer_that_leaves_at_once_arrive) {
  // `b` has accepted the connection, but has not read that the dialler has begun.
  end();
  a = transport(id_a, {.tls = tls}, net_a);
  b = transport(id_b, {.tls = tls}, net_b);
  a->set_job(job());
  b->set_job(job());
  sink_a = std::make_unique<Recorder>(a.get());
  sink_b = std::make_unique<Recorder>(b.get());
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
  while (b->state(0) != LinkState::up) poll_a(), poll_b();
  while (a->state(0) != LinkState::up) poll_a();
  b->send(0, data_header(7, 0), {}, 0);
  b->close(0);
  settle();
  EXPECT_EQ(sink_a->frames.size(), 1u);
  EXPECT_EQ(sink_a->losses[0].size(), 1u);
}

TEST_P(TcpLeaving, last_results_survive_a_reset_at_leaving) {
  auto large = pattern(4u << 20, test_seed());
  const auto small = pattern(4000, test_seed() + 1), whole = large;
  a->send(0, data_header(0, large.size()), large, 1);
  while (b->counters().received_bytes < (1u << 20)) poll_a(), poll_b();
  ASSERT_TRUE(sink_b->frames.empty()) << "the network took the whole frame at once";
  for (size_t i = 1; i <= 20; ++i) EXPECT_TRUE(a->send(0, data_header(i, small.size()), small, 1 + i));
  a->close(0);
  large.assign(large.size(), std::byte{});
  EXPECT_TRUE(a->draining());
  EXPECT_TRUE(a->has_pending());
  net_a.reset_all();
  ASSERT_TRUE(within(1 * second, [&] { return !sink_b->losses.empty() && !a->draining(); }));
  ASSERT_EQ(sink_b->frames.size(), 21u);
  EXPECT_TRUE(same(sink_b->frames[0].payload, whole));
  for (size_t i = 1; i <= 20; ++i) EXPECT_TRUE(same(sink_b->frames[i].payload, small));
  EXPECT_EQ(sink_b->losses[0].size(), 1u);
  EXPECT_TRUE(sink_a->losses.empty());
  EXPECT_EQ(net_a.open(), 0u);
  EXPECT_FALSE(a->has_pending());
  EXPECT_EQ(a->blocks_out(), 0u);
}

TEST_P(TcpLeaving, a_reset_instead_of_the_last_confirmation_is_healed_by_either_side) {
  for (auto* blind : {&net_a, &net_b}) {
    a->send(0, data_header(7, 0), {}, 0);
    a->close(0);
    // `b` reads the last frame, but its confirmation is not written yet.
    while (sink_b->frames.empty()) poll_b();
    blind->dials_blocked = true;
    net_b.reset_all();
    ASSERT_TRUE(within(1 * second, [&] { return !sink_b->losses.empty() && !a->draining(); }));
    EXPECT_EQ(sink_b->losses[0].size(), 1u);
    EXPECT_EQ(sink_b->frames.size(), 1u);
    blind->dials_blocked = false;
    make({}, {});
  }
}

TEST_P(TcpLeaving, a_process_that_has_left_answers_for_the_link_timeout) {
  a->send(0, data_header(7, 0), {}, 0);
  a->close(0);
  while (sink_b->frames.empty()) poll_b();
  poll_b();
  poll_b();
  while (a->draining()) poll_a();
  EXPECT_TRUE(sink_b->losses.empty());
  net_b.reset_all();
  const auto dials = net_b.dials();
  ASSERT_TRUE(within(100 * millisecond, [&] { return !sink_b->losses.empty(); }));
  EXPECT_EQ(net_b.dials(), dials + 1);
  EXPECT_EQ(a->last_refusal(), "");
}

TEST_P(TcpLeaving, a_leaving_process_need_not_stay_when_the_peers_host_has_everything) {
  a->send(0, data_header(7, 0), {}, 0);
  b->send(0, data_header(8, 0), {}, 0);
  settle();
  a->close(0);
  // `b` confirms nothing. Its kernel acknowledges, but may take its time.
  for (const auto limit = clock_now() + patience; a->has_pending() && clock_now() < limit;) poll_a();
  ASSERT_FALSE(a->has_pending());
  a.reset();
  for (int i = 0; i < 40; ++i, now += 10 * millisecond) poll_b();
  EXPECT_EQ(sink_b->frames.size(), 1u);
  EXPECT_EQ(sink_b->losses[0].size(), 1u);
}

TEST_P(TcpLeaving, a_closed_index_can_be_used_again_while_its_link_still_leaves) {
  block(true);
  reset();
  a->send(0, data_header(7, 0), {}, 0);
  a->close(0);
  EXPECT_EQ(a->state(0), LinkState::unknown);
  ASSERT_TRUE(a->add_peer(request(id_b, b->endpoints(), true)).ok());
  EXPECT_FALSE(within(1 * second, [&] { return !a->draining(); }));
  block(false);
  ASSERT_TRUE(within(2 * second, [&] { return !sink_b->losses.empty(); }));
  EXPECT_EQ(sink_b->frames.size(), 1u);
  sink_b->losses.clear();
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
  ASSERT_TRUE(within(2 * second, [&] { return both_up() && !a->draining(); }));
  expect_frames_flow();
}

INSTANTIATE_TEST_SUITE_P(, TcpLeaving, testing::Bool(), [](const auto& which) { return which.param ? "encrypted" : "plain"; });

}  // namespace
}  // namespace unisono::conformance

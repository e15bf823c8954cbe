// Tests of links whose connections break. The sockets are real, and the test breaks them. Time is virtual, so that no limit
// depends on the speed of the machine.
#include <gtest/gtest.h>

#include "transports/tcp/tcp_healing_test_support.h"

namespace unisono::conformance {
namespace {

TEST_P(TcpHealing, a_reset_inside_a_placed_payload_costs_no_byte) {
  const auto payload = pattern(payload_bytes_max, test_seed());
  Bytes target(payload.size());
  sink_b->on_receive_buffer = [&](PeerIndex, const FrameHeader&) { return target.data(); };
  EXPECT_FALSE(a->send(0, data_header(1, payload.size()), payload, 1));
  while (b->counters().received_bytes < (1u << 20)) poll_a(), poll_b();
  ASSERT_TRUE(sink_b->frames.empty()) << "the network took the whole frame at once";
  reset();
  ASSERT_TRUE(within(1 * second, [&] { return !sink_b->frames.empty() && !sink_a->sent_ids.empty(); }));
  EXPECT_TRUE(same(target, payload));
  EXPECT_EQ(sink_b->buffer_requests, 1u);
  EXPECT_TRUE(sink_b->frames[0].placed);
  EXPECT_EQ(sink_a->sent_ids, (std::map<uint64_t, int>{{1, 1}}));
  EXPECT_EQ(b->counters().received_bytes, payload.size() + sizeof(FrameHeader));
  expect_no_loss();
}

// The sender's memory may depend on the confirmation, so a process that is idle must go on polling until it is sent.
TEST_P(TcpHealing, a_transport_says_until_when_it_has_to_confirm) {
  const auto payload = pattern(100'000, test_seed());
  ASSERT_TRUE(within(1 * second, [&] { return !a->awaits_confirmations() && !b->awaits_confirmations(); }));
  EXPECT_FALSE(a->send(0, data_header(1, payload.size()), payload, 7));
  for (int i = 0; i < 1000 && sink_b->frames.empty(); ++i) poll_a(), poll_b();
  ASSERT_EQ(sink_b->frames.size(), 1u);
  EXPECT_TRUE(b->awaits_confirmations());
  EXPECT_LE(b->next_deadline(), now + 5 * millisecond);
  now += 5 * millisecond;
  for (int i = 0; i < 1000 && b->awaits_confirmations(); ++i) poll_b();
  EXPECT_FALSE(b->awaits_confirmations());
  for (int i = 0; i < 1000 && a->awaits_confirmations(); ++i) poll_a();
  EXPECT_FALSE(a->awaits_confirmations());
  EXPECT_EQ(sink_a->sent_ids[7], 1);
}

TEST_P(TcpHealing, an_event_says_how_long_the_connection_was_down_and_why) {
  block(true);
  reset();
  EXPECT_FALSE(within(300 * millisecond, [&] { return !sink_a->notices.empty() || !sink_b->notices.empty(); }));
  EXPECT_NE(a->link_state(0).find("its connection is down for 0.3 s (connection reset by peer; "), std::string::npos)
      << a->link_state(0);
  EXPECT_NE(a->describe(0).find(a->link_state(0)), std::string::npos) << a->describe(0);
  block(false);
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
  for (const auto* sink : {sink_a.get(), sink_b.get()}) {
    EXPECT_TRUE(notice(*sink).starts_with("reconnected to it after 0.")) << notice(*sink);
    EXPECT_TRUE(notice(*sink).ends_with(" s: connection reset by peer\n")) << notice(*sink);
  }
  EXPECT_EQ(a->link_state(0), "");
  expect_frames_flow();
}

TEST_P(TcpHealing, both_sides_dial_and_one_connection_survives) {
  for (int lead = -8; lead <= 8; ++lead) {
    SCOPED_TRACE(lead);
    sink_a->notices.clear();
    sink_b->notices.clear();
    net_a.shut_all();
    net_b.shut_all();
    const auto dials_a = net_a.dials(), dials_b = net_b.dials();
    for (int i = 0; i < -lead; ++i) poll_a();
    for (int i = 0; i < lead; ++i) poll_b();
    ASSERT_TRUE(within(2 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
    EXPECT_GT(net_a.dials() + net_b.dials(), dials_a + dials_b);
    ASSERT_NO_FATAL_FAILURE(expect_frames_flow());
    ASSERT_TRUE(within(2 * second, [&] { return net_a.open() == 1 && net_b.open() == 1; }));
    EXPECT_EQ(sink_a->notices.size(), 1u) << notice(*sink_a);
    EXPECT_EQ(sink_b->notices.size(), 1u) << notice(*sink_b);
  }
}

TEST_P(TcpHealing, either_side_can_reconnect_alone) {
  for (auto* blind : {&net_a, &net_b}) {
    // Its dials lead nowhere, but the other side's arrive.
    blind->dials_blocked = true;
    reset();
    ASSERT_TRUE(within(2 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
    expect_frames_flow();
    blind->dials_blocked = false;
    sink_a->notices.clear();
    sink_b->notices.clear();
  }
}

TEST_P(TcpHealing, a_peer_whose_process_is_gone_is_dead_at_once) {
  const auto there = b->endpoints()[0].substr(6);
  b.reset();
  ASSERT_TRUE(within(20 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  const auto& text = loss_of_a().message();
  EXPECT_NE(text.find("; its process is gone: " + there + ": connection refused"), std::string::npos) << text;
  EXPECT_EQ(sink_a->fates[0], PeerFate::ended);
}

TEST_P(TcpHealing, a_refusal_where_the_peer_has_answered_is_a_death_whatever_its_other_addresses_do) {
  end();
  a = transport(id_a, {.tls = tls}, net_a);
  b = transport(id_b, {.tls = tls}, net_b);
  a->set_job(job());
  b->set_job(job());
  sink_a = std::make_unique<Recorder>(a.get());
  sink_b = std::make_unique<Recorder>(b.get());
  auto endpoints = b->endpoints();
  endpoints.emplace_back("tcp://240.0.0.1:9");  // cannot be reached from anywhere
  ASSERT_TRUE(a->add_peer(request(id_b, endpoints, true)).ok());
  ASSERT_TRUE(b->add_peer(request(id_a, a->endpoints(), false)).ok());
  ASSERT_TRUE(within(1 * second, [&] { return both_up(); }));
  settle();
  b.reset();
  ASSERT_TRUE(within(20 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_NE(loss_of_a().message().find("; its process is gone: "), std::string::npos) << loss_of_a().message();
}

TEST_P(TcpHealing, a_link_without_any_answer_is_lost_after_the_link_timeout_with_what_was_tried) {
  const auto there = b->endpoints()[0].substr(6);
  block(true);
  reset();
  EXPECT_FALSE(within(9900 * millisecond, [&] { return !sink_a->losses.empty() || !sink_b->losses.empty(); }));
  ASSERT_TRUE(within(200 * millisecond, [&] { return !sink_a->losses.empty() && !sink_b->losses.empty(); }));
  EXPECT_EQ(loss_of_a().code(), Code::peer_lost);
  const auto& text = loss_of_a().message();
  EXPECT_NE(text.find("connection reset by peer; it could not be reached again for 10.0 s: " + there + ": no answer"),
            std::string::npos)
      << text;
  EXPECT_EQ(sink_a->fates[0], PeerFate::unknown) << "it may live";
  EXPECT_EQ(sink_b->fates[0], PeerFate::unknown);
}

TEST_P(TcpHealing, a_lost_link_is_made_anew_to_the_same_process) {
  lose_link();
  block(false);
  add_again();
  ASSERT_TRUE(within(1 * second, [&] { return both_up(); }));
  sink_a->losses.clear(), sink_b->losses.clear();
  expect_frames_flow();
}

TEST_P(TcpHealing, a_lost_link_whose_process_has_ended_since_is_proven_dead_when_it_is_dialled) {
  lose_link();
  block(false);
  const auto endpoints = b->endpoints();
  b.reset();
  sink_a->losses.clear();
  ASSERT_TRUE(a->add_peer(again(id_b, endpoints, true)).ok());
  ASSERT_TRUE(within(100 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(sink_a->fates[0], PeerFate::ended);
}

TEST_P(TcpHealing, a_refusal_where_nobody_has_answered_before_proves_nothing) {
  const auto endpoints = b->endpoints();
  end();
  a = transport(id_a, {.tls = tls}, net_a);
  a->set_job(job());
  sink_a = std::make_unique<Recorder>(a.get());
  now = clock_now();
  ASSERT_TRUE(a->add_peer(again(id_b, endpoints, true)).ok());
  ASSERT_TRUE(within(100 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_EQ(sink_a->fates[0], PeerFate::unknown) << "a firewall may refuse";
}

TEST_P(TcpHealing, a_peer_that_dials_anew_replaces_a_link_without_a_connection) {
  block(true);
  reset();
  ASSERT_TRUE(within(5 * second, [&] { return b->is_reconnecting(0); }));
  a = transport(id_a, {.tls = tls}, net_a);
  a->set_job(job());
  auto other = request({3, 300}, {}, false);
  other.peer = 1;
  ASSERT_TRUE(a->add_peer(other).ok());                  // so that the number of the next session is new
  net_a.dials_blocked = net_b.arrivals_blocked = false;  // only `a` can dial
  ASSERT_TRUE(a->add_peer(again(id_b, b->endpoints(), true)).ok());
  ASSERT_TRUE(within(2 * second, [&] { return !sink_b->losses.empty(); }));
  EXPECT_EQ(sink_b->fates[0], PeerFate::unknown) << "it has given up the link, and lives";
  ASSERT_TRUE(b->add_peer(again(id_a, a->endpoints(), false)).ok());
  ASSERT_TRUE(within(2 * second, [&] { return both_up(); }));
}

TEST_P(TcpHealing, a_connection_that_ends_in_order_without_a_word_and_then_silence_is_a_death) {
  block(true);
  net_b.shut_all();
  settle();
  EXPECT_FALSE(within(900 * millisecond, [&] { return !sink_a->losses.empty(); }));
  EXPECT_TRUE(within(200 * millisecond, [&] { return !sink_a->losses.empty(); }));
}

TEST_P(TcpHealing, a_process_that_was_stopped_during_an_outage_tries_again) {
  block(true);
  reset();
  EXPECT_FALSE(within(1 * second, [&] { return !sink_a->losses.empty(); }));
  now += 60 * second;
  block(false);
  EXPECT_TRUE(within(1 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
  expect_frames_flow();
}

TEST_P(TcpHealing, a_peer_that_has_given_up_the_link_says_so) {
  TcpOptions impatient;
  impatient.link.link_timeout = 1 * second;
  make({}, impatient);
  block(true);
  reset();
  ASSERT_TRUE(within(2 * second, [&] { return !sink_b->losses.empty(); }));
  block(false);
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->losses.empty(); }));
  EXPECT_NE(loss_of_a().message().find("the peer had given up this link"), std::string::npos) << loss_of_a().message();
  EXPECT_EQ(sink_a->fates[0], PeerFate::unknown);
}

TEST_P(TcpHealing, frames_queue_up_to_the_credit_while_there_is_no_connection) {
  const size_t most = TcpLinkOptions().queue_frames_max;
  ASSERT_TRUE(within(1 * second, [&] { return a->credit(0) == most; }));
  sink_a->credits.clear();
  block(true);
  reset();
  const auto payload = pattern(10'000, test_seed());
  for (size_t i = 0; i < most; ++i) {
    ASSERT_EQ(a->credit(0), most - i);
    a->send(0, data_header(i, payload.size()), payload, i);
  }
  EXPECT_EQ(a->credit(0), 0u);
  EXPECT_FALSE(within(1 * second, [&] { return sink_a->credits[0] > 0; }));
  block(false);
  ASSERT_TRUE(within(1 * second, [&] { return sink_b->frames.size() == most; }));
  EXPECT_EQ(sink_a->credits[0], 1);
  for (size_t i = 0; i < most; ++i) EXPECT_EQ(sink_b->frames[i].header.operation, i);
  ASSERT_TRUE(within(1 * second, [&] { return sink_a->sent_ids.size() == most; }));
  expect_no_loss();
}

TEST_P(TcpHealing, a_cancelled_frame_takes_no_confirmation_along) {
  const auto large = pattern(8u << 20, test_seed()), payload = pattern(10'000, test_seed() + 1);
  EXPECT_FALSE(b->send(0, data_header(1, large.size()), large, 1));
  while (a->counters().received_bytes < (1u << 20)) poll_a(), poll_b();
  ASSERT_TRUE(sink_a->frames.empty()) << "the network took the whole frame at once";
  EXPECT_FALSE(a->send(0, data_header(2, payload.size()), payload, 2));
  while (sink_b->frames.empty()) poll_b();
  EXPECT_FALSE(b->send(0, data_header(3, payload.size()), payload, 3));  // it waits, and says that frame 2 was read
  b->cancel({.match = 3, .mask = UINT64_MAX});
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->frames.empty() && sink_a->sent_ids.contains(2); }));
  expect_no_loss();
}

TEST_P(TcpHealing, a_cancelled_payload_is_not_read_again_while_there_is_no_connection) {
  auto payload = pattern(8u << 20, test_seed());
  const auto whole = payload;
  a->send(0, data_header(1, payload.size()), payload, 0x11);
  while (b->counters().received_bytes < (1u << 20)) poll_a(), poll_b();
  ASSERT_TRUE(sink_b->frames.empty()) << "the network took the whole frame at once";
  block(true);
  reset();
  a->send(0, data_header(2, payload.size()), payload, 0x12);
  a->cancel({.match = 0x10, .mask = 0xF0});
  std::ranges::fill(payload, std::byte{0xDD});
  const auto last = pattern(5000, test_seed() + 1);
  a->send(0, data_header(3, last.size()), last, 0x23);
  block(false);
  ASSERT_TRUE(within(1 * second, [&] { return sink_b->frames.size() == 2; }));
  EXPECT_TRUE(same(sink_b->frames[0].payload, whole)) << "a frame that was begun is kept";
  EXPECT_EQ(sink_b->frames[1].header.operation, 3u);
  EXPECT_EQ(sink_b->frames[1].payload, last);
  ASSERT_TRUE(within(1 * second, [&] { return sink_a->sent_ids.contains(0x23); }));
  EXPECT_EQ(sink_a->sent_ids.size(), 1u);
  expect_no_loss();
}

TEST_P(TcpHealing, a_connection_that_seems_dead_is_replaced_by_another_one) {
  const auto payload = pattern(100'000, test_seed());
  a->send(0, data_header(1, payload.size()), payload, 1);
  net_a.silence = 2 * second;
  for (int i = 0; i < 100; ++i, now += 10 * millisecond) poll_a();
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->notices.empty() && !sink_b->notices.empty(); }));
  EXPECT_NE(notice(*sink_a).find("it carried nothing any more"), std::string::npos) << notice(*sink_a);
  EXPECT_NE(notice(*sink_b).find("the peer has made a new connection"), std::string::npos) << notice(*sink_b);
  ASSERT_EQ(sink_b->frames.size(), 1u);
  EXPECT_EQ(sink_b->frames[0].payload, payload);
  net_a.silence = 0;
  expect_frames_flow();
}

TEST_P(TcpHealing, a_dial_beside_a_connection_ends_when_that_moves_again) {
  const auto payload = pattern(100'000, test_seed());
  net_b.arrivals_blocked = true;
  a->send(0, data_header(1, payload.size()), payload, 1);
  net_a.silence = 2 * second;
  for (int i = 0; i < 80; ++i, now += 10 * millisecond) poll_a();
  EXPECT_EQ(net_a.open(), 2u);
  net_a.silence = 0;
  // Sooner than the dial's own time limit.
  for (int i = 0; i < 30; ++i, now += 10 * millisecond) poll_a();
  EXPECT_EQ(net_a.open(), 1u);
  net_b.arrivals_blocked = false;
  ASSERT_TRUE(within(1 * second, [&] { return sink_b->frames.size() == 1; }));
  EXPECT_TRUE(sink_a->notices.empty()) << notice(*sink_a);
  expect_frames_flow();
}

TEST_P(TcpHealing, a_connection_that_was_made_waits_until_the_old_one_is_read) {
  TcpOptions tight;
  tight.pool.owner_bytes_max = 32u << 10;
  make(tight, {});
  sink_a->keep_views = true;
  const auto payload = pattern(10'000, test_seed());
  for (size_t i = 0; i < 6; ++i) b->send(0, data_header(i, payload.size()), payload, i);
  for (int i = 0; i < 20; ++i) poll_a();
  EXPECT_EQ(sink_a->views.size(), 2u);
  a->send(0, data_header(1, 0), {}, 0);
  net_a.silence = 2 * second;
  for (int i = 0; i < 100; ++i, now += 10 * millisecond) poll_a();
  EXPECT_FALSE(within(3 * second, [&] { return !sink_a->notices.empty() || sink_a->frames.size() > 2; }));
  net_a.silence = 0;
  sink_a->keep_views = false;
  for (const auto& view : std::exchange(sink_a->views, {})) a->release(view);
  ASSERT_TRUE(within(2 * second, [&] { return sink_a->frames.size() == 6 && sink_b->frames.size() == 1; }));
  expect_frames_flow();
}

TEST_P(TcpHealing, a_connection_ends_while_its_successor_waits_until_it_is_read) {
  TcpOptions tight;
  tight.pool.owner_bytes_max = 32u << 10;
  make({}, tight);
  sink_b->keep_views = true;
  const auto payload = pattern(10'000, test_seed());
  for (size_t i = 0; i < 6; ++i) a->send(0, data_header(i, payload.size()), payload, i);
  // The reset and the hello of the next connection arrive at `b` before it has read the frames.
  net_a.reset_all();
  for (int i = 0; i < 100; ++i, now += 1 * millisecond) poll_a();
  for (int i = 0; i < 20; ++i) poll_b();
  EXPECT_EQ(sink_b->views.size(), 2u);
  sink_b->keep_views = false;
  for (const auto& view : std::exchange(sink_b->views, {})) b->release(view);
  ASSERT_TRUE(within(2 * second, [&] { return sink_b->frames.size() == 6; }));
  for (size_t i = 0; i < 6; ++i) EXPECT_TRUE(sink_b->frames[i].header.operation == i && sink_b->frames[i].payload == payload);
  ASSERT_TRUE(within(2 * second, [&] { return sink_a->sent_ids.size() == 6; }));
  expect_no_loss();
}

TEST_P(TcpHealing, a_sink_may_close_the_link_while_the_old_connection_is_read_to_its_end) {
  a->send(0, data_header(1, 0), {}, 0);
  sink_b->on_received = [&](PeerIndex, const FrameHeader&) { b->close(0); };
  net_a.reset_all();
  for (int i = 0; i < 100; ++i, now += 1 * millisecond) poll_a();
  settle();
  EXPECT_EQ(sink_b->frames.size(), 1u);
  EXPECT_TRUE(sink_b->losses.empty());
  ASSERT_TRUE(within(1 * second, [&] { return !sink_a->losses.empty(); }));
}

INSTANTIATE_TEST_SUITE_P(, TcpHealing, testing::Bool(), [](const auto& which) { return which.param ? "encrypted" : "plain"; });

}  // namespace
}  // namespace unisono::conformance

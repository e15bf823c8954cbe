#include "engine/control_messages.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "engine/recording_transport_test_support.h"

namespace unisono {
namespace {

struct ControlMessagesTest : testing::Test {
  std::shared_ptr<Bytes> text(int value) const { return std::make_shared<Bytes>(3, static_cast<std::byte>(value)); }
  RecordingTransport transport;
  PeerTable peers = peers_over(transport, 2);
  ControlMessages control{peers};
};

TEST_F(ControlMessagesTest, messages_without_credit_go_out_in_order_when_there_is_credit) {
  transport.allowed = 0;
  for (const int value : {1, 2, 3}) control.send_control(1, text(value));
  EXPECT_TRUE(transport.sent.empty());
  transport.allowed = 2;
  control.on_credit(1);
  ASSERT_EQ(transport.sent.size(), 2u);
  transport.allowed = 5;
  control.on_credit(1);
  ASSERT_EQ(transport.sent.size(), 3u);
  for (int value = 1; value <= 3; ++value) EXPECT_EQ(transport.sent[static_cast<size_t>(value - 1)].payload, *text(value));
}

TEST_F(ControlMessagesTest, a_failure_does_not_wait_and_first_requests_credit) {
  transport.allowed = 0;
  transport.slots_bytes = 4096;
  const FrameHeader failed{.kind = FrameKind::failed, .group = 1, .operation = 7, .payload_bytes = 3};
  control.send(0, failed, text(1));
  ASSERT_EQ(transport.sent.size(), 2u);
  EXPECT_EQ(transport.sent[0].header.kind, FrameKind::credit);
  EXPECT_EQ(transport.sent[0].header.amount, 0u);
  EXPECT_EQ(transport.sent[1].header.kind, FrameKind::failed);
  EXPECT_EQ(transport.sent[1].header.operation, 7u);
}

TEST_F(ControlMessagesTest, a_payload_lives_until_the_transport_has_sent_it) {
  transport.done_at_once = false;
  const auto payload = text(1);
  control.send_control(0, payload);
  control.send_control(1, payload);
  EXPECT_EQ(payload.use_count(), 3);
  for (const auto& sent : transport.sent) {
    EXPECT_TRUE(ControlMessages::owns(sent.id));
    control.on_sent(sent.id);
  }
  EXPECT_EQ(payload.use_count(), 1);
  EXPECT_EQ(control.in_flight(), 0u);
}

TEST_F(ControlMessagesTest, a_cancelled_payload_is_sent_no_more_and_other_messages_are) {
  transport.done_at_once = false;
  transport.allowed = 2;
  const auto burst = text(1), other = text(2);
  for (int i = 0; i < 4; ++i) control.send_control(1, burst);
  control.send_control(1, other);
  ASSERT_EQ(transport.sent.size(), 2u);
  control.cancel(1, burst);
  EXPECT_EQ(burst.use_count(), 1);
  EXPECT_EQ(control.in_flight(), 0u);
  ASSERT_EQ(transport.cancelled.size(), 2u);
  for (const auto& sent : transport.sent) {
    EXPECT_TRUE(std::ranges::any_of(transport.cancelled, [&](const auto& what) { return what.concerns_send(sent.id); }));
  }
  EXPECT_FALSE(transport.cancelled[0].concerns_send(transport.cancelled[1].match));
  transport.allowed = 5;
  control.on_credit(1);
  ASSERT_EQ(transport.sent.size(), 3u);
  EXPECT_EQ(transport.sent[2].payload, *other);
}

TEST_F(ControlMessagesTest, nothing_is_sent_to_a_peer_whose_link_has_ended) {
  peers[1].lost = Status(Code::peer_lost, "link closed");
  control.send_control(1, text(1));
  control.send_goodbye(1, 7);
  EXPECT_TRUE(transport.sent.empty());
  EXPECT_EQ(control.in_flight(), 0u);
}

}  // namespace
}  // namespace unisono

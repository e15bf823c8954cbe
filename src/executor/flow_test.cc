#include "executor/flow.h"

#include <gtest/gtest.h>

namespace unisono {
namespace {

TEST(Flow, a_small_total_needs_no_grant) {
  const FlowLimits limits{.eager_bytes = 1000, .window_bytes = 4000};
  Flow flow{.send_total = 1000, .recv_total = 1000};
  flow.open(limits);
  EXPECT_TRUE(flow.may_send(1000));
  EXPECT_EQ(flow.next_grant(limits), 0u);
}

TEST(Flow, a_large_total_is_granted_window_by_window) {
  const FlowLimits limits{.eager_bytes = 1000, .window_bytes = 4000};
  Flow flow{.send_total = 10'000, .recv_total = 10'000};
  flow.open(limits);
  EXPECT_TRUE(flow.may_send(1000));
  EXPECT_FALSE(flow.may_send(1001));
  EXPECT_EQ(flow.first_grant(limits), 4000u);
  flow.recv_consumed = 1999;
  EXPECT_EQ(flow.next_grant(limits), 0u) << "less than half a window is new";
  flow.recv_consumed = 2000;
  EXPECT_EQ(flow.next_grant(limits), 6000u);
  flow.recv_consumed = 6000;
  EXPECT_EQ(flow.next_grant(limits), 10'000u) << "all that is left, even if it is less than half a window";
  EXPECT_EQ(flow.next_grant(limits), 0u);
}

TEST(Flow, the_first_grant_is_sent_even_if_it_allows_nothing_new) {
  const FlowLimits limits{.eager_bytes = 1000, .window_bytes = 1000};
  Flow sender{.send_total = 5000}, receiver{.recv_total = 5000};
  sender.open(limits);
  receiver.open(limits);
  sender.send_used = 1000;
  EXPECT_FALSE(sender.may_overdraw()) << "the receiver may not have begun: its memory is bounded by the eager limit";
  EXPECT_EQ(receiver.first_grant(limits), 1000u);
  sender.opened = true;
  EXPECT_TRUE(sender.may_overdraw());
}

TEST(Flow, one_message_may_overdraw_the_window_and_is_granted_at_once_when_anything_was_used) {
  const FlowLimits limits{.eager_bytes = 100, .window_bytes = 1000};
  Flow sender{.send_total = 5000}, receiver{.recv_total = 5000};
  sender.open(limits);
  receiver.open(limits);
  sender.send_allowed = receiver.first_grant(limits);
  sender.opened = true;
  sender.send_used = 1000;
  EXPECT_FALSE(sender.may_send(100));
  EXPECT_TRUE(sender.may_overdraw());
  sender.send_used += 100;
  EXPECT_FALSE(sender.may_overdraw()) << "only one";
  receiver.recv_arrived = 1100;
  EXPECT_EQ(receiver.next_grant(limits), 0u) << "nothing was used yet";
  receiver.recv_consumed = 100;
  EXPECT_EQ(receiver.next_grant(limits), 1100u) << "less than half a window, but the sender waits";
}

TEST(Flow, grants_keep_coming_as_long_as_the_receiver_works) {
  const FlowLimits limits{.eager_bytes = 100, .window_bytes = 1000};
  Flow sender{.send_total = 50'000}, receiver{.recv_total = 50'000};
  sender.open(limits);
  receiver.open(limits);
  uint64_t allowed = sender.send_allowed;
  for (int turns = 0; sender.send_used < sender.send_total; ++turns) {
    ASSERT_LT(turns, 10'000);
    if (const auto grant = turns == 0 ? receiver.first_grant(limits) : receiver.next_grant(limits)) allowed = grant;
    sender.send_allowed = allowed;
    while (sender.send_used < sender.send_total && sender.may_send(100)) sender.send_used += 100;
    ASSERT_LE(sender.send_used - receiver.recv_consumed, limits.window_bytes);
    receiver.recv_consumed = sender.send_used;
  }
}

}  // namespace
}  // namespace unisono

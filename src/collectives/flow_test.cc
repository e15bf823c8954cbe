#include "collectives/flow.h"

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

TEST(Flow, a_large_total_is_granted_window_by_window_until_all_of_it_is) {
  const FlowLimits limits{.eager_bytes = 1000, .window_bytes = 4000};
  Flow flow{.send_total = 10'000, .recv_total = 10'000};
  flow.open(limits);
  EXPECT_TRUE(flow.may_send(1000));
  EXPECT_FALSE(flow.may_send(1001));
  EXPECT_EQ(flow.next_grant(limits), 4000u);
  flow.recv_consumed = 1999;
  EXPECT_EQ(flow.next_grant(limits), 0u) << "less than half a window is new";
  flow.recv_consumed = 2000;
  EXPECT_EQ(flow.next_grant(limits), 6000u);
  flow.recv_consumed = 6000;
  EXPECT_EQ(flow.next_grant(limits), 10'000u) << "all that is left, even if it is less than half a window";
  EXPECT_EQ(flow.next_grant(limits), 0u);
}

TEST(Flow, grants_keep_coming_as_long_as_the_receiver_works) {
  const FlowLimits limits{.eager_bytes = 100, .window_bytes = 1000};
  Flow sender{.send_total = 50'000}, receiver{.recv_total = 50'000};
  sender.open(limits);
  receiver.open(limits);
  uint64_t allowed = sender.send_allowed;
  for (int turns = 0; sender.send_used < sender.send_total; ++turns) {
    ASSERT_LT(turns, 10'000);
    if (const auto grant = receiver.next_grant(limits)) allowed = grant;
    sender.send_allowed = allowed;
    while (sender.send_used < sender.send_total && sender.may_send(100)) sender.send_used += 100;
    ASSERT_LE(sender.send_used - receiver.recv_consumed, limits.window_bytes);
    receiver.recv_consumed = sender.send_used;
  }
}

}  // namespace
}  // namespace unisono

#include "lossy/delivery_policy.h"

#include <gtest/gtest.h>

#include <string>

namespace unisono {
namespace {

constexpr uint64_t datagrams = 10'000;

DeliveryOutcome outcome(double loss, Nanos duration = 10 * millisecond, uint32_t size_class = 20) {
  return {.phase_duration = duration,
          .size_class = size_class,
          .expected = datagrams,
          .missing = static_cast<uint64_t>(loss * datagrams + 0.5)};
}

// Reports up to `operations` equal outcomes. Returns the number of operations after which the delivery mode changed; 0 if the
// mode did not change.
int change_after(DeliveryPolicy& policy, int operations, double loss, Nanos duration = 10 * millisecond) {
  for (int i = 1; i <= operations; ++i) {
    if (policy.operation_ended(outcome(loss, duration))) return i;
  }
  return 0;
}

// Like change_after(), but every tenth operation takes `times` as long.
int change_with_tail(DeliveryPolicy& policy, int operations, double loss, double times) {
  for (int i = 1; i <= operations; ++i) {
    if (policy.operation_ended(outcome(loss, i % 10 == 0 ? static_cast<Nanos>(times * 10e6) : 10 * millisecond))) return i;
  }
  return 0;
}

TEST(DeliveryPolicy, starts_in_the_requested_mode_and_automatic_starts_reliable) {
  EXPECT_EQ(DeliveryPolicy(Delivery::reliable, {}).current(), Delivery::reliable);
  EXPECT_EQ(DeliveryPolicy(Delivery::lossy, {}).current(), Delivery::lossy);
  EXPECT_EQ(DeliveryPolicy(Delivery::automatic, {}).current(), Delivery::reliable);
}

TEST(DeliveryPolicy, a_request_for_reliable_stays_reliable) {
  DeliveryPolicy policy(Delivery::reliable, {});
  EXPECT_EQ(change_with_tail(policy, 300, 0.01, 5), 0);
  EXPECT_EQ(policy.note(), "");
}

TEST(DeliveryPolicy, lossy_switches_itself_off_for_good_above_loss_off) {
  DeliveryPolicy policy(Delivery::lossy, {});
  EXPECT_EQ(change_after(policy, 100, 0.40), 0);  // a loss of 40 % equals loss_off, so the policy stays lossy
  for (int i = 0; i < 19; ++i) EXPECT_FALSE(policy.operation_ended(outcome(0.40)));
  EXPECT_TRUE(policy.operation_ended(outcome(0.402)));
  EXPECT_EQ(policy.current(), Delivery::reliable);
  EXPECT_EQ(policy.note(), "loss of 40.01 % over 20 operations is above loss_off, 40.0 %: reliable delivery from now on");
  EXPECT_EQ(change_after(policy, 600, 0), 0);
  EXPECT_EQ(change_with_tail(policy, 600, 0.01, 5), 0);
}

TEST(DeliveryPolicy, a_few_bad_operations_do_not_switch_it_off) {
  DeliveryPolicy policy(Delivery::lossy, {});
  EXPECT_EQ(change_after(policy, 19, 1), 0);
  DeliveryPolicy later(Delivery::lossy, {});
  EXPECT_EQ(change_after(later, 20, 0), 0);
  EXPECT_EQ(change_after(later, 20, 1), 9);  // 9 of 20 operations with a loss of 1 are 45 %, above loss_off = 40 %
}

TEST(DeliveryPolicy, loss_off_of_one_never_switches_off) {
  DeliveryPolicy policy(Delivery::lossy, {.loss_off = 1});
  EXPECT_EQ(change_after(policy, 300, 1), 0);
}

TEST(DeliveryPolicy, a_request_for_lossy_stays_lossy_on_clean_links) {
  DeliveryPolicy policy(Delivery::lossy, {});
  EXPECT_EQ(change_after(policy, 600, 0), 0);
}

TEST(DeliveryPolicy, automatic_needs_64_operations_with_a_tail_and_with_loss) {
  DeliveryPolicy policy(Delivery::automatic, {});
  EXPECT_EQ(change_with_tail(policy, 200, 0.01, 3), 64);
  EXPECT_EQ(policy.current(), Delivery::lossy);
  EXPECT_EQ(policy.note(),
            "loss of 1.0 % over 64 operations, and the P95 of the phase time is 3.0 times the median: lossy delivery");
}

TEST(DeliveryPolicy, automatic_stays_reliable_without_a_tail_or_with_too_little_or_too_much_loss) {
  for (const auto& [loss, times] : {std::pair{0.01, 1.5}, {0.0009, 3.0}, {0.051, 3.0}, {0.0, 3.0}, {0.01, 1.0}}) {
    DeliveryPolicy policy(Delivery::automatic, {});
    EXPECT_EQ(change_with_tail(policy, 300, loss, times), 0) << loss << ", " << times;
  }
  for (const double loss : {0.001, 0.05}) {
    DeliveryPolicy policy(Delivery::automatic, {});
    EXPECT_EQ(change_with_tail(policy, 300, loss, 1.6), 64) << loss;
  }
}

TEST(DeliveryPolicy, different_tensor_sizes_do_not_count_as_a_tail) {
  DeliveryPolicy policy(Delivery::automatic, {});
  for (int i = 0; i < 300; ++i)
    EXPECT_FALSE(policy.operation_ended(outcome(0.01, i % 4 == 0 ? 90 * millisecond : 10 * millisecond, i % 4 == 0 ? 25 : 20)));
  for (int i = 0; i < 64 && policy.current() == Delivery::reliable; ++i) {
    policy.operation_ended(outcome(0.01, (i % 4 == 0 ? 90 : 10) * (i % 8 < 2 ? 4 : 1) * millisecond, i % 4 == 0 ? 25 : 20));
  }
  EXPECT_EQ(policy.current(), Delivery::lossy);
}

TEST(DeliveryPolicy, automatic_returns_to_reliable_after_256_clean_operations) {
  DeliveryPolicy policy(Delivery::automatic, {});
  ASSERT_EQ(change_with_tail(policy, 64, 0.01, 3), 64);
  EXPECT_EQ(change_with_tail(policy, 300, 0.0005, 3), 0);
  EXPECT_EQ(change_after(policy, 300, 0), 1);  // one operation without loss brings the mean of 256 operations below 0.05 %
  EXPECT_EQ(policy.current(), Delivery::reliable);
  EXPECT_NE(policy.note().find("below 0.05 %"), std::string::npos) << policy.note();
  EXPECT_EQ(change_with_tail(policy, 200, 0.01, 3), 64);  // the policy switches to lossy a second time
}

TEST(DeliveryPolicy, automatic_counts_256_operations_since_it_changed) {
  DeliveryPolicy policy(Delivery::automatic, {});
  ASSERT_EQ(change_with_tail(policy, 64, 0.01, 3), 64);
  EXPECT_EQ(change_after(policy, 300, 0.0001), 256);
}

TEST(DeliveryPolicy, automatic_returns_to_reliable_above_loss_off_and_may_become_lossy_again) {
  DeliveryPolicy policy(Delivery::automatic, {});
  ASSERT_EQ(change_with_tail(policy, 64, 0.01, 3), 64);
  EXPECT_EQ(change_after(policy, 30, 0.5), 20);
  EXPECT_EQ(policy.current(), Delivery::reliable);
  EXPECT_EQ(change_with_tail(policy, 200, 0.01, 3), 64);
}

TEST(DeliveryPolicy, changed_options_keep_earlier_outcomes) {
  DeliveryPolicy policy(Delivery::lossy, {});
  EXPECT_EQ(change_after(policy, 30, 0.3), 0);
  policy.set({.loss_off = 0.2});
  EXPECT_EQ(change_after(policy, 1, 0.3), 1);
}

TEST(DeliveryPolicy, streams_are_repaired_above_the_budget_or_to_completion) {
  EXPECT_FALSE(DeliveryPolicy::needs_repair(0.05, 0.05, false));
  EXPECT_TRUE(DeliveryPolicy::needs_repair(0.051, 0.05, false));
  EXPECT_TRUE(DeliveryPolicy::needs_repair(0.001, 0.05, true));
  EXPECT_TRUE(DeliveryPolicy::needs_repair(0.001, 0, false));
  EXPECT_FALSE(DeliveryPolicy::needs_repair(1, 1, false));
  EXPECT_FALSE(DeliveryPolicy::needs_repair(0, 0, true));
}

}  // namespace
}  // namespace unisono

#include "transports/udp/path/udp_black_hole.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace unisono {
namespace {

// A sender with its watch, and what has arrived at its receiver.
struct Sender {
  BlackHoleWatch watch;
  RttEstimator rtt;
  uint32_t seq = 0;
  FlowFeedback report;
  Nanos now = second;

  Sender() { rtt.sample(100 * microsecond); }
  void send(bool is_long, bool arrives) {
    watch.sent(++seq, is_long, now);
    if (!arrives) return;
    ++report.received;
    report.highest_flow_seq = seq;
  }
  Nanos due() const { return watch.due(rtt); }
  Nanos wait() const { return 2 * rtt.answer_time() + BlackHoleWatch::report_time; }
};

TEST(BlackHoleWatch, three_long_datagrams_without_a_sign_of_arrival_are_a_reason_to_check) {
  Sender sender;
  sender.send(true, false);
  sender.now += millisecond;
  sender.send(true, false);
  EXPECT_EQ(sender.due(), never);
  sender.send(true, false);
  EXPECT_EQ(sender.due(), second + sender.wait()) << "counted from the first of them";
}

TEST(BlackHoleWatch, arrivals_of_short_datagrams_prove_nothing) {
  Sender sender;
  for (int i = 0; i < 50; ++i) {
    sender.send(true, false);
    sender.send(false, true);
    sender.watch.reported(sender.report);
  }
  EXPECT_EQ(sender.due(), second + sender.wait());
}

TEST(BlackHoleWatch, one_arrival_of_a_long_datagram_ends_the_reason) {
  Sender sender;
  for (int i = 0; i < 20; ++i) sender.send(i % 2 == 0, i == 18);
  sender.watch.reported(sender.report);
  EXPECT_EQ(sender.due(), second + sender.wait()) << "nine short ones were lost, so it may have been one of them";
  for (int i = 0; i < 10; ++i) sender.send(true, true);
  sender.watch.reported(sender.report);
  EXPECT_EQ(sender.due(), never);
}

TEST(BlackHoleWatch, short_datagrams_that_arrive_late_prove_nothing) {
  Sender sender;
  for (int i = 0; i < 10; ++i) sender.send(false, false);
  sender.send(false, true);
  sender.watch.reported(sender.report);
  for (int i = 0; i < 5; ++i) sender.send(true, false);
  sender.report.received += 10;
  sender.watch.reported(sender.report);
  EXPECT_EQ(sender.due(), second + sender.wait());
}

TEST(BlackHoleWatch, after_a_check_lost_short_datagrams_are_forgotten) {
  Sender sender;
  for (int i = 0; i < 100; ++i) sender.send(false, false);
  for (int i = 0; i < 3; ++i) sender.send(true, false);
  sender.send(false, true);
  sender.watch.reported(sender.report);
  EXPECT_NE(sender.due(), never);
  sender.watch.checked();
  EXPECT_EQ(sender.due(), never);
  for (int i = 0; i < 3; ++i) sender.send(true, true);
  sender.watch.reported(sender.report);
  EXPECT_EQ(sender.due(), never);
}

TEST(BlackHoleWatch, losses_alone_are_never_a_reason_while_long_datagrams_flow) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Sender sender;
    for (int i = 0; i < 20'000; ++i) {
      sender.send(!random.chance(0.1), !random.chance(0.3));
      if (i % 32 != 31) continue;
      sender.watch.reported(sender.report);
      sender.now += millisecond;
      EXPECT_GT(sender.due(), sender.now);
    }
  }
}

TEST(BlackHoleWatch, a_report_about_numbers_that_were_not_sent_is_ignored) {
  Sender sender;
  for (int i = 0; i < 3; ++i) sender.send(true, false);
  sender.watch.reported({.received = 1000, .highest_flow_seq = 4});
  EXPECT_NE(sender.due(), never);
}

TEST(BlackHoleWatch, numbers_may_be_too_many_to_be_remembered) {
  Sender sender;
  for (int i = 0; i < 100'000; ++i) sender.send(false, true);
  sender.watch.reported(sender.report);
  for (int i = 0; i < 3; ++i) sender.send(true, false);
  sender.send(false, true);
  sender.watch.reported(sender.report);
  EXPECT_NE(sender.due(), never);
}

}  // namespace
}  // namespace unisono

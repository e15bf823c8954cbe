#include "transports/udp/path/udp_rate_control.h"

#include <gtest/gtest.h>

#include <vector>

namespace unisono {
namespace {

// Feeds a RateControl with one report per millisecond, at a round trip of 400 us.
struct Reporter {
  explicit Reporter(uint64_t start = 10'000'000) : control({.start = start}) { rtt.sample(400 * microsecond); }

  // In the last millisecond `datagrams` more were sent, and `lost` of them did not arrive.
  bool report(uint32_t datagrams, uint32_t lost, int32_t delay_us) {
    now += millisecond;
    for (uint32_t i = 0; i < datagrams; ++i) control.sent(1472);
    totals.highest_flow_seq += datagrams;
    totals.received += datagrams - lost;
    totals.delay_us = delay_us;
    return control.feedback(totals, rtt, now);
  }
  // Sends at the present rate, a millisecond of it in each report.
  void full(int count, double loss, int32_t delay_us) {
    for (int i = 0; i < count; ++i) {
      const auto datagrams = static_cast<uint32_t>(std::max(1.0, static_cast<double>(control.rate()) / 1472e3));
      carry += loss * datagrams;
      const auto lost = static_cast<uint32_t>(carry);
      carry -= lost;
      report(datagrams, lost, delay_us);
    }
  }
  // Ends the doubling: the delay is too long once, and then normal again.
  void settle() {
    full(1, 0, 0);
    full(1, 0, 4000);
    full(20, 0, 700);
    ASSERT_FALSE(control.starting());
  }

  RateControl control;
  RttEstimator rtt;
  FlowFeedback totals;
  Nanos now = 5 * second;
  double carry = 0;
};

TEST(RateControl, goes_down_to_seven_tenths_at_a_queue_delay_of_four_targets) {
  Reporter ends;
  ends.report(10, 0, -123'456);
  ends.report(10, 0, -123'456 + 4000);
  EXPECT_EQ(ends.control.rate(), 7'000'000u);
  EXPECT_EQ(ends.control.queue_delay(), 4 * millisecond);
  EXPECT_EQ(ends.control.decreases(), 1u);
}

TEST(RateControl, has_a_target_of_a_quarter_of_a_long_round_trip) {
  Reporter ends;
  ends.rtt = {};
  ends.rtt.sample(40 * millisecond);
  ends.report(10, 0, 0);
  ends.now += 40 * millisecond;
  ends.report(10, 0, 9'000);
  EXPECT_EQ(ends.control.decreases(), 0u);
  ends.now += 40 * millisecond;
  ends.report(10, 0, 20'000);
  EXPECT_EQ(ends.control.rate(), 8'000'000u) << "1 - 0.4 (1 - 10/20)";
}

TEST(RateControl, doubles_until_the_first_decrease_and_then_grows_by_a_fiftieth) {
  Reporter ends;
  ends.full(4, 0, 0);
  EXPECT_EQ(ends.control.rate(), 80'000'000u);
  ends.full(1, 0, 2000);
  EXPECT_EQ(ends.control.rate(), 64'000'000u);
  EXPECT_FALSE(ends.control.starting());
  ends.full(4, 0, 700);
  EXPECT_EQ(ends.control.rate(), 64'000'000u) << "between half the target and the target";
  ends.full(1, 0, 400);
  EXPECT_EQ(ends.control.rate(), 65'472'000u) << "one datagram per millisecond is more than a fiftieth";
  ends.full(1, 0, 400);
  EXPECT_EQ(ends.control.rate(), 66'944'000u);
}

TEST(RateControl, grows_by_a_fiftieth_where_that_is_more_than_a_datagram) {
  Reporter ends(200'000'000);
  ends.settle();
  const auto before = ends.control.rate();
  ends.full(1, 0, 400);
  EXPECT_NEAR(static_cast<double>(ends.control.rate()), 1.02 * static_cast<double>(before), 1);
}

TEST(RateControl, does_not_raise_a_rate_that_is_not_used) {
  Reporter ends;
  for (int i = 0; i < 50; ++i) ends.report(2, 0, 0);
  EXPECT_EQ(ends.control.rate(), 10'000'000u);
}

TEST(RateControl, raises_a_rate_that_something_waits_for_although_little_goes_out) {
  Reporter ends;
  for (int i = 0; i < 3; ++i) {
    ends.control.held_back(ends.now);
    ends.report(2, 0, 0);
  }
  EXPECT_GT(ends.control.rate(), 10'000'000u);
  const auto rate = ends.control.rate();
  for (int i = 0; i < 3; ++i) ends.report(2, 0, 0);
  EXPECT_EQ(ends.control.rate(), rate) << "nothing waited since";
}

TEST(RateControl, is_not_slowed_down_by_one_late_report_of_four) {
  Reporter ends;
  ends.settle();
  const auto decreases = ends.control.decreases();
  for (int i = 0; i < 10; ++i) {
    ends.full(1, 0, 9000);
    ends.full(3, 0, 0);
  }
  EXPECT_EQ(ends.control.decreases(), decreases);
  ends.full(4, 0, 4000);
  EXPECT_EQ(ends.control.decreases(), decreases + 1) << "four running are a queue";
}

TEST(RateControl, is_not_lowered_again_while_the_queue_gets_shorter) {
  Reporter ends;
  ends.settle();
  ends.full(4, 0, 8000);
  const auto decreases = ends.control.decreases();
  for (const int32_t delay : {7000, 6000, 5000, 4000, 3000, 2000}) ends.full(2, 0, delay);
  EXPECT_EQ(ends.control.decreases(), decreases);
  ends.full(6, 0, 2000);
  EXPECT_GT(ends.control.decreases(), decreases) << "it does not get shorter any more";
}

// Controls of several destinations beside the one of all, with reports a millisecond apart.
struct Destinations {
  explicit Destinations(size_t count) {
    for (size_t i = 0; i < count; ++i) each.emplace_back();
  }
  void report(const std::vector<int32_t>& delays_us) {
    for (size_t i = 0; i < each.size(); ++i) {
      auto& ends = each[i];
      ends.now += millisecond;
      for (int datagram = 0; datagram < 8; ++datagram) {
        ends.control.sent(1472);
        all.sent(1472);
      }
      ends.totals.highest_flow_seq += 8;
      ends.totals.received += 8;
      ends.totals.delay_us = delays_us[i];
      ends.totals.echo_sent_at_us = static_cast<uint32_t>(ends.now / microsecond) - 200;
      ends.control.feedback(ends.totals, ends.rtt, ends.now, &all);
    }
  }

  RateControl all{{.start = 10'000'000}};
  std::vector<Reporter> each;
};

TEST(RateControl, what_all_destinations_wait_for_alike_slows_them_together_and_none_by_itself) {
  Destinations ends(3);
  for (int i = 0; i < 20; ++i) ends.report({-500, 7000, 0});
  const auto before = ends.all.decreases();
  for (int i = 0; i < 10; ++i) ends.report({3500, 11'000, 4000});
  EXPECT_GT(ends.all.decreases(), before);
  for (const auto& one : ends.each) EXPECT_EQ(one.control.decreases(), 0u);
}

TEST(RateControl, what_one_destination_waits_for_slows_only_that_one) {
  Destinations ends(3);
  for (int i = 0; i < 20; ++i) ends.report({0, 0, 0});
  const auto before = ends.all.decreases();
  for (int i = 0; i < 20; ++i) ends.report({0, 9000, 0});
  EXPECT_EQ(ends.all.decreases(), before);
  EXPECT_EQ(ends.each[0].control.decreases(), 0u);
  EXPECT_GT(ends.each[1].control.decreases(), 1u);
  EXPECT_LT(ends.each[1].control.rate(), ends.each[2].control.rate() / 2);
}

TEST(RateControl, halts_for_drops_of_the_receivers_own_buffer) {
  Reporter ends;
  ends.full(1, 0, 0);
  ends.totals.own_drops = 3;
  ends.report(7, 3, 0);
  EXPECT_EQ(ends.control.rate(), 7'000'000u);
  ends.report(5, 0, 700);
  EXPECT_EQ(ends.control.rate(), 7'000'000u) << "counted once";
}

TEST(RateControl, does_not_take_loss_for_congestion) {
  for (const double loss : {0.01, 0.1, 0.3}) {
    Reporter ends;
    ends.control.set_limit(2'000'000'000);
    ends.full(500, loss, 0);
    EXPECT_EQ(ends.control.decreases(), 0u);
    EXPECT_GT(ends.control.rate(), 1'000'000'000u);
  }
}

TEST(RateControl, takes_loss_far_above_its_minimum_for_congestion_when_it_lasts_for_two_windows) {
  Reporter ends(200'000'000);
  ends.settle();
  ends.full(12, 0.05, 700);  // two windows take 4 reports
  const auto before = ends.control.rate();
  const auto decreases = ends.control.decreases();
  ends.full(12, 0.08, 700);
  EXPECT_EQ(ends.control.decreases(), decreases);
  while (ends.control.loss() < 0.2) ends.full(1, 0.25, 700);
  EXPECT_EQ(ends.control.decreases(), decreases) << "one window may be chance";
  while (ends.control.decreases() == decreases) ends.full(1, 0.25, 700);
  EXPECT_NEAR(static_cast<double>(ends.control.rate()), 0.75 * static_cast<double>(before), 0.02 * static_cast<double>(before))
      << "the rate delivered";
  while (ends.control.decreases() == decreases + 1) ends.full(1, 0.6, 700);
  EXPECT_NEAR(static_cast<double>(ends.control.rate()), 0.7 * 0.75 * static_cast<double>(before),
              0.02 * static_cast<double>(before))
      << "but not below 0.7";
}

TEST(RateControl, stays_above_a_megabit_and_within_its_limit) {
  Reporter ends;
  ends.full(1, 0, 0);
  ends.full(60, 0, 50'000);
  EXPECT_EQ(ends.control.rate(), 125'000u);
  Reporter limited;
  limited.control.set_limit(15'000'000);
  limited.full(10, 0, 0);
  EXPECT_EQ(limited.control.rate(), 15'000'000u);
  limited.control.set_limit(50'000);
  EXPECT_EQ(limited.control.rate(), 50'000u) << "the limit is the user's";
}

TEST(RateControl, starts_at_half_of_what_the_train_showed) {
  Reporter ends;
  ends.control.probed(60'000'000);
  EXPECT_EQ(ends.control.rate(), 30'000'000u);
  ends.settle();
  const auto before = ends.control.rate();
  ends.control.probed(60'000'000);
  EXPECT_EQ(ends.control.rate(), before);
}

TEST(RateControl, updates_once_per_round_trip) {
  Reporter ends;
  ends.rtt = {};
  ends.rtt.sample(10 * millisecond);
  ends.full(1, 0, 0);
  ends.full(9, 0, 0);
  EXPECT_EQ(ends.control.rate(), 10'000'000u);
  ends.full(1, 0, 0);
  EXPECT_EQ(ends.control.rate(), 20'000'000u);
}

TEST(RateControl, ignores_reports_that_were_overtaken) {
  Reporter ends;
  ends.full(3, 0, 0);
  const auto before = ends.control.rate();
  auto old = ends.totals;
  old.received -= 5;
  old.highest_flow_seq -= 5;
  old.delay_us = 100'000;
  EXPECT_FALSE(ends.control.feedback(old, ends.rtt, ends.now + 5 * millisecond));
  EXPECT_EQ(ends.control.rate(), before);
}

TEST(RateControl, knows_delays_across_the_wrap_of_the_clocks) {
  Reporter ends;
  ends.report(10, 0, INT32_MAX - 100);
  ends.report(10, 0, INT32_MIN + 3899);
  EXPECT_EQ(ends.control.rate(), 7'000'000u);
}

TEST(RateControl, forgets_a_delay_of_ten_seconds_ago) {
  Reporter ends;
  ends.settle();
  ends.report(1, 0, -5000);  // the path was shorter then
  for (int i = 0; i < 100; ++i) {
    ends.now += 109 * millisecond;
    ends.report(1, 0, 0);
  }
  EXPECT_EQ(ends.control.queue_delay(), 0);
  EXPECT_GT(ends.control.decreases(), 50u) << "it counted until then";
}

TEST(RateControl, survives_reports_that_cannot_be) {
  Reporter ends;
  ends.full(3, 0, 0);
  ends.totals.received += 2'000'000'000;
  ends.totals.highest_flow_seq += 7;
  ends.report(3, 0, INT32_MIN);
  ends.rtt = {};
  for (int i = 0; i < 100; ++i) ends.report(static_cast<uint32_t>(i) * 40u, 0, i % 2 == 0 ? INT32_MIN : INT32_MAX);
  EXPECT_GE(ends.control.rate(), 125'000u);
  EXPECT_LE(ends.control.rate(), 100'000'000'000u);
}

TEST(ArrivalMeter, reports_the_mean_delay_since_the_last_report_and_the_latest_echo) {
  ArrivalMeter meter;
  EXPECT_EQ(meter.due(), never);
  meter.arrived(7, 1000, 500, 10);
  meter.arrived(9, 2000, 1700, 20);
  meter.arrived(8, 1500, 1900, 30);
  EXPECT_EQ(meter.due(), 10 + 3 * millisecond) << "three are few";
  const FlowFeedback expected{
      .received = 3, .highest_flow_seq = 9, .own_drops = 4, .echo_sent_at_us = 1500, .echo_held_us = 100, .delay_us = -134};
  EXPECT_EQ(meter.report(4, 2000), expected);
  EXPECT_EQ(meter.due(), never);
  meter.arrived(10, 5000, 5050, 40);
  EXPECT_EQ(meter.report(4, 5050).delay_us, 50);
  EXPECT_EQ(meter.report(4, 5060).delay_us, 50) << "nothing new";
}

TEST(ArrivalMeter, waits_longer_for_few_datagrams) {
  ArrivalMeter meter;
  for (uint32_t i = 0; i < 3; ++i) meter.arrived(i, i, i, second);
  EXPECT_EQ(meter.due(), second + 3 * millisecond);
  meter.arrived(3, 3, 3, second + 500 * microsecond);
  EXPECT_EQ(meter.due(), second + millisecond);
}

TEST(ArrivalMeter, is_due_at_once_after_32_datagrams) {
  ArrivalMeter meter;
  for (uint32_t i = 0; i < 31; ++i) meter.arrived(i, i, i, second);
  EXPECT_EQ(meter.due(), second + millisecond);
  meter.arrived(31, 0, 0, second + 1);
  EXPECT_LE(meter.due(), second + 1);
}

TEST(ArrivalMeter, counts_across_all_wraps) {
  ArrivalMeter meter;
  meter.arrived(UINT32_MAX, 10, UINT32_MAX - 9, 0);
  meter.arrived(0, 30, 14, 0);
  const auto report = meter.report(0, 20);
  EXPECT_EQ(report.highest_flow_seq, 0u);
  EXPECT_EQ(report.delay_us, -18);
  EXPECT_EQ(report.echo_held_us, 6u);
  meter.arrived(1, 0, static_cast<uint32_t>(INT32_MAX), 0);
  meter.arrived(2, 0, static_cast<uint32_t>(INT32_MAX) + 2, 0);
  EXPECT_EQ(meter.report(0, 0).delay_us, INT32_MIN) << "the mean of two delays on both sides of the wrap lies between them";
}

}  // namespace
}  // namespace unisono

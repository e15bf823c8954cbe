#include "transports/udp/path/udp_rate_control.h"

#include <gtest/gtest.h>

#include <vector>

namespace unisono {
namespace {

// Feeds a RateControl with one report per millisecond. The round trip is 400 us.
struct Reporter {
  explicit Reporter(uint64_t start = 10'000'000) : control({.start = start}) { rtt.sample(400 * microsecond); }

  // Reports that `datagrams` more were sent in the last millisecond, and that `lost` of them did not arrive.
  bool report(uint32_t datagrams, uint32_t lost, int32_t delay_us) {
    now += millisecond;
    for (uint32_t i = 0; i < datagrams; ++i) control.sent(1472);
    totals.highest_flow_seq += datagrams;
    totals.received += datagrams - lost;
    totals.delay_us = delay_us;
    return control.feedback(totals, rtt, now);
  }
  // Sends at the current rate for `count` milliseconds, with one report per millisecond.
  void full(int count, double loss, int32_t delay_us) {
    for (int i = 0; i < count; ++i) {
      const auto datagrams = static_cast<uint32_t>(std::max(1.0, static_cast<double>(control.rate()) / 1472e3));
      carry += loss * datagrams;
      const auto lost = static_cast<uint32_t>(carry);
      carry -= lost;
      report(datagrams, lost, delay_us);
    }
  }
  // Ends the doubling of the rate: one report has a delay that is too long, and the next reports are normal again.
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
  Reporter reporter;
  reporter.report(10, 0, -123'456);
  reporter.report(10, 0, -123'456 + 4000);
  EXPECT_EQ(reporter.control.rate(), 7'000'000u);
  EXPECT_EQ(reporter.control.queue_delay(), 4 * millisecond);
  EXPECT_EQ(reporter.control.decreases(), 1u);
}

TEST(RateControl, has_a_target_of_a_quarter_of_a_long_round_trip) {
  Reporter reporter;
  reporter.rtt = {};
  reporter.rtt.sample(40 * millisecond);
  reporter.report(10, 0, 0);
  reporter.now += 40 * millisecond;
  reporter.report(10, 0, 9'000);
  EXPECT_EQ(reporter.control.decreases(), 0u);
  reporter.now += 40 * millisecond;
  reporter.report(10, 0, 20'000);
  EXPECT_EQ(reporter.control.rate(), 8'000'000u) << "1 - 0.4 (1 - 10/20)";
}

TEST(RateControl, doubles_until_the_first_decrease_and_then_grows_by_a_fiftieth) {
  Reporter reporter;
  reporter.full(4, 0, 0);
  EXPECT_EQ(reporter.control.rate(), 80'000'000u);
  reporter.full(1, 0, 2000);
  EXPECT_EQ(reporter.control.rate(), 64'000'000u);
  EXPECT_FALSE(reporter.control.starting());
  reporter.full(4, 0, 700);
  EXPECT_EQ(reporter.control.rate(), 64'000'000u) << "between half the target and the target";
  reporter.full(1, 0, 400);
  EXPECT_EQ(reporter.control.rate(), 65'472'000u) << "one datagram per millisecond is more than a fiftieth";
  reporter.full(1, 0, 400);
  EXPECT_EQ(reporter.control.rate(), 66'944'000u);
}

TEST(RateControl, grows_by_a_fiftieth_where_that_is_more_than_a_datagram) {
  Reporter reporter(200'000'000);
  reporter.settle();
  const auto before = reporter.control.rate();
  reporter.full(1, 0, 400);
  EXPECT_NEAR(static_cast<double>(reporter.control.rate()), 1.02 * static_cast<double>(before), 1);
}

TEST(RateControl, does_not_raise_a_rate_that_is_not_used) {
  Reporter reporter;
  for (int i = 0; i < 50; ++i) reporter.report(2, 0, 0);
  EXPECT_EQ(reporter.control.rate(), 10'000'000u);
}

TEST(RateControl, a_rate_rises_while_datagrams_wait_although_little_is_sent) {
  Reporter reporter;
  for (int i = 0; i < 3; ++i) {
    reporter.control.held_back(reporter.now);
    reporter.report(2, 0, 0);
  }
  EXPECT_GT(reporter.control.rate(), 10'000'000u);
  const auto rate = reporter.control.rate();
  for (int i = 0; i < 3; ++i) reporter.report(2, 0, 0);
  EXPECT_EQ(reporter.control.rate(), rate) << "nothing waited since";
}

TEST(RateControl, is_not_slowed_down_by_one_late_report_of_four) {
  Reporter reporter;
  reporter.settle();
  const auto decreases = reporter.control.decreases();
  for (int i = 0; i < 10; ++i) {
    reporter.full(1, 0, 9000);
    reporter.full(3, 0, 0);
  }
  EXPECT_EQ(reporter.control.decreases(), decreases);
  reporter.full(4, 0, 4000);
  EXPECT_EQ(reporter.control.decreases(), decreases + 1) << "four running are a queue";
}

TEST(RateControl, is_not_lowered_again_while_the_queue_gets_shorter) {
  Reporter reporter;
  reporter.settle();
  reporter.full(4, 0, 8000);
  const auto decreases = reporter.control.decreases();
  for (const int32_t delay : {7000, 6000, 5000, 4000, 3000, 2000}) reporter.full(2, 0, delay);
  EXPECT_EQ(reporter.control.decreases(), decreases);
  reporter.full(6, 0, 2000);
  EXPECT_GT(reporter.control.decreases(), decreases) << "it does not get shorter any more";
}

// One control per destination and the control for all destinations. Each destination reports once per millisecond.
struct Destinations {
  explicit Destinations(size_t count) {
    for (size_t i = 0; i < count; ++i) each.emplace_back();
  }
  void report(const std::vector<int32_t>& delays_us) {
    for (size_t i = 0; i < each.size(); ++i) {
      auto& reporter = each[i];
      reporter.now += millisecond;
      for (int datagram = 0; datagram < 8; ++datagram) {
        reporter.control.sent(1472);
        all.sent(1472);
      }
      reporter.totals.highest_flow_seq += 8;
      reporter.totals.received += 8;
      reporter.totals.delay_us = delays_us[i];
      reporter.totals.echo_sent_at_us = static_cast<uint32_t>(reporter.now / microsecond) - 200;
      reporter.control.feedback(reporter.totals, reporter.rtt, reporter.now, &all);
    }
  }

  RateControl all{{.start = 10'000'000}};
  std::vector<Reporter> each;
};

TEST(RateControl, a_delay_of_all_destinations_lowers_only_the_common_rate) {
  Destinations destinations(3);
  for (int i = 0; i < 20; ++i) destinations.report({-500, 7000, 0});
  const auto before = destinations.all.decreases();
  for (int i = 0; i < 10; ++i) destinations.report({3500, 11'000, 4000});
  EXPECT_GT(destinations.all.decreases(), before);
  for (const auto& one : destinations.each) EXPECT_EQ(one.control.decreases(), 0u);
}

TEST(RateControl, a_delay_of_one_destination_lowers_only_its_rate) {
  Destinations destinations(3);
  for (int i = 0; i < 20; ++i) destinations.report({0, 0, 0});
  const auto before = destinations.all.decreases();
  for (int i = 0; i < 20; ++i) destinations.report({0, 9000, 0});
  EXPECT_EQ(destinations.all.decreases(), before);
  EXPECT_EQ(destinations.each[0].control.decreases(), 0u);
  EXPECT_GT(destinations.each[1].control.decreases(), 1u);
  EXPECT_LT(destinations.each[1].control.rate(), destinations.each[2].control.rate() / 2);
}

TEST(RateControl, drops_in_the_receivers_buffer_lower_the_rate) {
  Reporter reporter;
  reporter.full(1, 0, 0);
  reporter.totals.own_drops = 3;
  reporter.report(7, 3, 0);
  EXPECT_EQ(reporter.control.rate(), 7'000'000u);
  reporter.report(5, 0, 700);
  EXPECT_EQ(reporter.control.rate(), 7'000'000u) << "counted once";
}

TEST(RateControl, does_not_take_loss_for_congestion) {
  for (const double loss : {0.01, 0.1, 0.3}) {
    Reporter reporter;
    reporter.control.set_limit(2'000'000'000);
    reporter.full(500, loss, 0);
    EXPECT_EQ(reporter.control.decreases(), 0u);
    EXPECT_GT(reporter.control.rate(), 1'000'000'000u);
  }
}

TEST(RateControl, takes_loss_far_above_its_minimum_for_congestion_when_it_lasts_for_two_windows) {
  Reporter reporter(200'000'000);
  reporter.settle();
  reporter.full(12, 0.05, 700);  // 12 reports are six windows of loss: a window takes 2 reports
  const auto before = reporter.control.rate();
  const auto decreases = reporter.control.decreases();
  reporter.full(12, 0.08, 700);
  EXPECT_EQ(reporter.control.decreases(), decreases);
  while (reporter.control.loss() < 0.2) reporter.full(1, 0.25, 700);
  EXPECT_EQ(reporter.control.decreases(), decreases) << "one window may be chance";
  while (reporter.control.decreases() == decreases) reporter.full(1, 0.25, 700);
  EXPECT_NEAR(static_cast<double>(reporter.control.rate()), 0.75 * static_cast<double>(before),
              0.02 * static_cast<double>(before))
      << "the rate delivered";
  while (reporter.control.decreases() == decreases + 1) reporter.full(1, 0.6, 700);
  EXPECT_NEAR(static_cast<double>(reporter.control.rate()), 0.7 * 0.75 * static_cast<double>(before),
              0.02 * static_cast<double>(before))
      << "but not below 0.7";
}

TEST(RateControl, stays_above_a_megabit_and_within_its_limit) {
  Reporter reporter;
  reporter.full(1, 0, 0);
  reporter.full(60, 0, 50'000);
  EXPECT_EQ(reporter.control.rate(), 125'000u);
  Reporter limited;
  limited.control.set_limit(15'000'000);
  limited.full(10, 0, 0);
  EXPECT_EQ(limited.control.rate(), 15'000'000u);
  limited.control.set_limit(50'000);
  EXPECT_EQ(limited.control.rate(), 50'000u) << "the limit is the user's";
}

TEST(RateControl, starts_at_half_of_what_the_train_showed) {
  Reporter reporter;
  reporter.control.probed(60'000'000);
  EXPECT_EQ(reporter.control.rate(), 30'000'000u);
  reporter.settle();
  const auto before = reporter.control.rate();
  reporter.control.probed(60'000'000);
  EXPECT_EQ(reporter.control.rate(), before);
}

TEST(RateControl, the_first_train_to_any_destination_raises_the_common_rate) {
  RateControl all({});
  all.keep_below(1'250'000);  // the rate with which every destination begins
  all.destination_probed(30'000'000, 60'000'000);
  EXPECT_EQ(all.rate(), 30'000'000u);
  all.destination_probed(10'000'000, 20'000'000);
  EXPECT_EQ(all.rate(), 30'000'000u) << "a slow path slows down nobody else";
}

TEST(RateControl, updates_once_per_round_trip) {
  Reporter reporter;
  reporter.rtt = {};
  reporter.rtt.sample(10 * millisecond);
  reporter.full(1, 0, 0);
  reporter.full(9, 0, 0);
  EXPECT_EQ(reporter.control.rate(), 10'000'000u);
  reporter.full(1, 0, 0);
  EXPECT_EQ(reporter.control.rate(), 20'000'000u);
}

TEST(RateControl, ignores_reports_that_were_overtaken) {
  Reporter reporter;
  reporter.full(3, 0, 0);
  const auto before = reporter.control.rate();
  auto old = reporter.totals;
  old.received -= 5;
  old.highest_flow_seq -= 5;
  old.delay_us = 100'000;
  EXPECT_FALSE(reporter.control.feedback(old, reporter.rtt, reporter.now + 5 * millisecond));
  EXPECT_EQ(reporter.control.rate(), before);
}

TEST(RateControl, knows_delays_across_the_wrap_of_the_clocks) {
  Reporter reporter;
  reporter.report(10, 0, INT32_MAX - 100);
  reporter.report(10, 0, INT32_MIN + 3899);
  EXPECT_EQ(reporter.control.rate(), 7'000'000u);
}

TEST(RateControl, forgets_a_delay_of_ten_seconds_ago) {
  Reporter reporter;
  reporter.settle();
  reporter.report(1, 0, -5000);  // a low minimum: the path was shorter when this report was made
  for (int i = 0; i < 100; ++i) {
    reporter.now += 109 * millisecond;
    reporter.report(1, 0, 0);
  }
  EXPECT_EQ(reporter.control.queue_delay(), 0);
  EXPECT_GT(reporter.control.decreases(), 50u) << "it counted until then";
}

TEST(RateControl, impossible_reports_do_no_harm) {
  Reporter reporter;
  reporter.full(3, 0, 0);
  reporter.totals.received += 2'000'000'000;
  reporter.totals.highest_flow_seq += 7;
  reporter.report(3, 0, INT32_MIN);
  reporter.rtt = {};
  for (int i = 0; i < 100; ++i) reporter.report(static_cast<uint32_t>(i) * 40u, 0, i % 2 == 0 ? INT32_MIN : INT32_MAX);
  EXPECT_GE(reporter.control.rate(), 125'000u);
  EXPECT_LE(reporter.control.rate(), 100'000'000'000u);
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

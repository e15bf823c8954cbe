// Tests lossy all-reduces over a simulated network. Cases: incast, losses, and dead, stopped and slow peers. Engine and UDP
// transport are the production code.
#include <gtest/gtest.h>

#include <cmath>

#include "lab/loss/udp_run.h"

namespace unisono::sim {
namespace {

UdpRunSettings settings_of(const std::string& network, const std::string& loss, const std::string& lossy = "loss_budget=0.5") {
  UdpRunSettings settings{.model = *UdpModel::parse(network),
                          .loss = *LossModel::parse(loss),
                          .peers = 4,
                          .bytes = 64u << 10,
                          .operations = 60,
                          .burn_in = 30,
                          .delivery = *DeliveryOptions::parse(lossy)};
  settings.seed = 3;
  return settings;
}

UdpOutcome run(const UdpRunSettings& settings) {
  auto outcome = run_udp(settings);
  EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
  if (!outcome.ok()) return {};
  EXPECT_FALSE(outcome->is_stuck);
  EXPECT_EQ(outcome->differing, 0u);
  EXPECT_EQ(outcome->out_of_range, 0u);
  return *std::move(outcome);
}

TEST(UdpRun, a_seed_gives_the_same_run_to_the_bit_and_another_one_does_not) {
  auto settings = settings_of("jitter=20us,spread=1ms", "0.05");
  settings.operations = 30;
  const auto first = run(settings), again = run(settings);
  EXPECT_EQ(first.trace_hash, again.trace_hash);
  EXPECT_EQ(first.durations_us, again.durations_us);
  EXPECT_EQ(first.fates, again.fates);
  settings.seed = 4;
  EXPECT_NE(run(settings).trace_hash, first.trace_hash);
}

TEST(UdpRun, without_loss_everything_is_complete_and_exact) {
  const auto outcome = run(settings_of("", "none"));
  EXPECT_EQ(outcome.ended, (std::map<Code, uint64_t>{{Code::ok, 240}}));
  EXPECT_EQ(outcome.fates.lost + outcome.fates.overflowed, 0u);
  EXPECT_EQ(outcome.contributions.missing + outcome.contributions.repaired, 0u);
  EXPECT_EQ(outcome.effective, 4);
  EXPECT_NEAR(outcome.deviation.mean(), 0, 1e-6);
}

TEST(UdpRun, losses_reduce_contributors_and_leave_the_mean_unbiased) {
  auto settings = settings_of("", "0.1");
  settings.peers = 8;
  settings.operations = 80;
  const auto outcome = run(settings);
  EXPECT_EQ(outcome.ended, (std::map<Code, uint64_t>{{Code::ok, 640}}));
  const auto sent = static_cast<double>(outcome.data[0].sent);
  EXPECT_NEAR(static_cast<double>(outcome.data[0].lost) / sent, .1, 4.5 * std::sqrt(.09 / sent));
  // The lost 10 % are missing. Some late contributions are missing, too.
  const double missing =
      static_cast<double>(outcome.contributions.missing) / static_cast<double>(outcome.contributions.expected);
  EXPECT_GT(missing, .08);
  EXPECT_LT(missing, .15);
  EXPECT_EQ(outcome.results.missing, 0u);
  EXPECT_GT(outcome.results.repaired, 0u);
  EXPECT_GT(outcome.ranges_short, 0u);
  // A sender with more missing data weighs less, so a small bias is expected. Zeros for missing data would give -0.2.
  EXPECT_NEAR(outcome.deviation.mean(), 0, .03);
  EXPECT_EQ(outcome.contributions.over, 0u) << outcome.contributions.longest;
  EXPECT_EQ(outcome.failed_without_fault + outcome.wrongly_named, 0u);
}

TEST(UdpRun, incast_overflows_short_queues_and_all_of_it_is_repaired) {
  auto settings = settings_of("rate=100M,queue=4K", "none", "loss_budget=0");
  settings.peers = 8;
  settings.operations = 25;
  settings.burn_in = 0;
  const auto outcome = run(settings);
  EXPECT_EQ(outcome.ended, (std::map<Code, uint64_t>{{Code::ok, 200}}));
  EXPECT_GT(outcome.fates.overflowed, 100u) << "three datagrams fit";
  EXPECT_EQ(outcome.fates.lost, 0u);
  EXPECT_EQ(outcome.effective, 8);
}

// Check E3 of docs/design/methods/packet_loss.md, with six ranks that send at once: queues drop at most 0.5 % after 50
// operations.
TEST(UdpRun, learnt_rates_do_not_overflow_queues) {
  auto settings = settings_of("rate=200M,queue=256K,delay=100us", "0.01");
  settings.peers = 6;
  settings.operations = 70;
  settings.burn_in = 50;
  settings.bytes = 128u << 10;
  const auto outcome = run(settings);
  const auto sent = outcome.data[0].sent + outcome.data[1].sent,
             overflowed = outcome.data[0].overflowed + outcome.data[1].overflowed;
  EXPECT_LE(static_cast<double>(overflowed), .005 * static_cast<double>(sent));
}

TEST(UdpRun, a_dead_peer_is_named_by_all_and_the_group_reforms_without_it) {
  auto settings = settings_of("dead=2@300ms", "0.05");
  settings.operations = 160;
  const auto outcome = run(settings);
  ASSERT_EQ(outcome.faults.size(), 1u);
  const auto& record = outcome.faults[0];
  EXPECT_TRUE(record.happened);
  EXPECT_TRUE(record.removed);
  EXPECT_EQ(record.to_be_named_by, 3u);
  EXPECT_EQ(record.named_by, 3u);
  EXPECT_LE(record.last_named, second);
  EXPECT_GT(outcome.delayed, 0u);
  EXPECT_EQ(outcome.delayed_over, 0u) << outcome.longest_delay << " times t_hard";
  EXPECT_GT(outcome.fates.cut, 0u);
  EXPECT_EQ(outcome.operations, 160u);
  EXPECT_EQ(outcome.failed_without_fault, 0u);
  EXPECT_EQ(outcome.wrongly_named, 0u) << outcome.first_wrong_error;
}

TEST(UdpRun, a_killed_process_is_detected_fast_by_port_unreachable) {
  auto settings = settings_of("kill=2@300ms", "0.05");
  settings.operations = 160;
  const auto outcome = run(settings);
  const auto& record = outcome.faults.at(0);
  EXPECT_TRUE(record.removed);
  EXPECT_EQ(record.named_by, 3u);
  EXPECT_LE(record.last_named, second);
  EXPECT_EQ(outcome.wrongly_named, 0u) << outcome.first_wrong_error;
  EXPECT_EQ(outcome.members, 3u);
}

TEST(UdpRun, a_peer_that_stops_for_a_while_comes_back_and_stays) {
  auto settings = settings_of("stop=1@300ms-330ms", "0.05");
  settings.operations = 160;
  const auto outcome = run(settings);
  EXPECT_TRUE(outcome.faults.at(0).happened);
  EXPECT_FALSE(outcome.faults.at(0).removed);
  EXPECT_EQ(outcome.members, 4u);
  EXPECT_EQ(outcome.failed_without_fault, 0u);
  EXPECT_GT(outcome.ended.at(Code::ok), 4u * 80 - 20);
}

TEST(UdpRun, a_slow_peer_stays_in_the_group) {
  auto settings = settings_of("slow=1x8", "0.02");
  const auto outcome = run(settings);
  EXPECT_EQ(outcome.members, 4u);
  EXPECT_EQ(outcome.ended, (std::map<Code, uint64_t>{{Code::ok, 240}}));
  auto quick = settings;
  quick.model.faults.clear();
  EXPECT_GT(outcome.duration_us(.5), 2 * run(quick).duration_us(.5));
}

TEST(UdpRun, errors_name_contradictory_settings) {
  for (const auto& [change, why] : std::initializer_list<std::pair<std::function<void(UdpRunSettings&)>, const char*>>{
           {[](auto& s) { s.peers = 1; }, "1 peers"},
           {[](auto& s) { s.bytes = 6; }, "multiple of 4"},
           {[](auto& s) { s.loss = *LossModel::parse("iid:0.1,dead=1@3"); }, "--network dead="},
           {[](auto& s) { s.model = *UdpModel::parse("slow=4x2"); }, "there are 4 ranks"},
           {[](auto& s) { s.delivery.estimator = Estimator::zero_fill; }, "are for simulations"}}) {
    auto settings = settings_of("", "none");
    change(settings);
    const auto outcome = run_udp(settings);
    ASSERT_FALSE(outcome.ok()) << why;
    EXPECT_EQ(outcome.status().code(), Code::invalid);
    EXPECT_NE(outcome.status().message().find(why), std::string::npos) << outcome.status().message();
  }
}

}  // namespace
}  // namespace unisono::sim

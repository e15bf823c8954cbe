// Tests groups that switch between lossy and reliable delivery, over virtual links. The loss of the links rises or varies, and
// ranks may learn of a switch late. Also tests reliable delivery over lossy links.
#include <gtest/gtest.h>

#include "base/random.h"
#include "group/api/calls.h"
#include "kernels/dispatch.h"
#include "sim/udp/lossy_cluster_test_support.h"

namespace unisono::sim {
namespace {

constexpr size_t count = 20'000;  // 15 ranges for each of 4 owners

// Links whose loss a test can change during the run.
struct LossyLinks {
  double loss = 0;
  DatagramNetworkSettings settings(uint32_t ranks) {
    return {.ranks = ranks, .loses = [this](Rank from, Rank to, uint32_t number) {
              return static_cast<double>(mix64(from * 1'000'003u + to * 7'919u + number) >> 11) * 0x1p-53 < loss;
            }};
  }
};

struct Round {
  std::vector<std::shared_ptr<const DeliveryReport>> reports;  // indexed by rank
  bool exact = true;                                           // the result equals the mean of a reliable two_step, to the bit
  uint32_t reliable = 0;                                       // number of ranks that used reliable delivery
};

// Executes one all-reduce, which must succeed and give equal bits on all ranks.
Round round(LossyCluster& cluster, uint32_t ranks, const CallOptions& options, uint64_t seed) {
  auto values = random_values(ranks, count, seed);
  const auto expected = mean_of(values);
  Round round;
  for (const auto& outcome : cluster.all_reduce(values, options)) {
    EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
    if (!outcome.ok()) return round;
    round.reports.push_back(outcome->delivery);
    round.reliable += outcome->delivery->used == Delivery::reliable;
  }
  for (Rank rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(values[rank], values[0]) << "rank " << rank << ", seed " << seed;
    round.exact &= values[rank] == expected;
  }
  return round;
}

CallOptions calls(Delivery delivery, double loss_budget) {
  CallOptions options{.op = ReduceOp::avg, .delivery = delivery};
  options.lossy.loss_budget = loss_budget;
  return options;
}

TEST(DeliverySwitch, lossy_calls_become_reliable_after_twenty_operations_above_loss_off) {
  LossyLinks links{.loss = 0.2};
  LossyCluster cluster(links.settings(4));
  const auto options = calls(Delivery::lossy, 1);
  uint64_t seed = 0, inexact = 0;
  for (int i = 0; i < 60; ++i) {
    const auto done = round(cluster, 4, options, ++seed);
    ASSERT_EQ(done.reliable, 0u) << i;
    EXPECT_EQ(done.reports[0]->note, "");
    inexact += !done.exact;
  }
  EXPECT_EQ(inexact, 40u);  // the first twenty learn the deadlines and lose nothing
  links.loss = 0.55;
  int until_change = 0;
  while (until_change < 40 && round(cluster, 4, options, ++seed).reliable == 0) ++until_change;
  // The decision uses the mean loss of the last twenty operations. It starts at 0.2 and rises by (0.55 - 0.2) / 20 = 0.0175 per
  // operation. After 12 operations it is above loss_off (0.4). The decision applies from the operation after the next.
  EXPECT_NEAR(until_change, 13, 2);
  for (int i = 0; i < 30; ++i) {
    if (i == 10) links.loss = 0.01;  // low loss has no effect any more
    const auto done = round(cluster, 4, options, ++seed);
    EXPECT_EQ(done.reliable, 4u);
    EXPECT_TRUE(done.exact);
    for (const auto& report : done.reports) {
      EXPECT_EQ(report->note, done.reports[0]->note);
      EXPECT_NE(report->note.find("is above loss_off, 40.0 %: reliable delivery from now on (rank 0, from operation "),
                std::string::npos)
          << report->note;
      EXPECT_EQ(report->short_ranges + report->empty_ranges, 0u);
    }
  }
}

TEST(DeliverySwitch, a_loss_off_of_one_never_switches_to_reliable_delivery) {
  LossyLinks links{.loss = 0.5};
  LossyCluster cluster(links.settings(3));
  auto options = calls(Delivery::lossy, 1);
  options.lossy.loss_off = 1;
  for (uint64_t seed = 1; seed <= 60; ++seed) ASSERT_EQ(round(cluster, 3, options, seed).reliable, 0u) << seed;
}

TEST(DeliverySwitch, automatic_calls_are_lossy_while_links_lose_and_are_late) {
  LossyLinks links;
  LossyCluster cluster(links.settings(4));
  const auto options = calls(Delivery::automatic, 0.3);
  uint64_t seed = 0;
  // On clean links, delivery stays reliable.
  for (int i = 0; i < 100; ++i) {
    const auto done = round(cluster, 4, options, ++seed);
    ASSERT_EQ(done.reliable, 4u);
    ASSERT_TRUE(done.exact);
    ASSERT_EQ(done.reports[1]->note, "");
  }
  // One of eight operations has loss and takes longer.
  const auto loss_of = [&](int i) { return i % 8 == 0 ? 0.2 : 0; };
  int until_lossy = 0;
  for (;; ++until_lossy) {
    ASSERT_LT(until_lossy, 100);
    links.loss = loss_of(until_lossy);
    const auto done = round(cluster, 4, options, ++seed);
    if (done.reliable == 0) break;
    EXPECT_TRUE(done.exact) << "reliable operations lose nothing";
  }
  EXPECT_GT(until_lossy, 4);
  int inexact = 0;
  std::string note;
  for (int i = 0; i < 64; ++i) {
    links.loss = loss_of(i);
    const auto done = round(cluster, 4, options, ++seed);
    ASSERT_EQ(done.reliable, 0u);
    inexact += !done.exact;
    note = done.reports[3]->note;
  }
  EXPECT_GE(inexact, 7);
  EXPECT_NE(note.find("times the median: lossy delivery (rank 0, from operation "), std::string::npos) << note;
  // On clean links, delivery becomes reliable again after about 256 operations without loss.
  links.loss = 0;
  int until_reliable = 0;
  while (until_reliable < 400 && round(cluster, 4, options, ++seed).reliable == 0) ++until_reliable;
  EXPECT_NEAR(until_reliable, 254, 5);
  const auto last = round(cluster, 4, options, ++seed);
  EXPECT_EQ(last.reliable, 4u);
  EXPECT_NE(last.reports[2]->note.find("is below 0.05 %: reliable delivery again"), std::string::npos) << last.reports[2]->note;
}

TEST(DeliverySwitch, ranks_notified_late_of_a_change_get_equal_results) {
  LossyLinks links{.loss = 0.55};
  LossyCluster cluster(links.settings(4));
  const auto options = calls(Delivery::lossy, 1);
  cluster.set_notification_delay(second);
  uint64_t seed = 0, mixed = 0, after = 0;
  for (int i = 0; i < 100; ++i) {
    const auto done = round(cluster, 4, options, ++seed);  // also checks that all ranks have equal bits
    mixed += done.reliable > 0 && done.reliable < 4;
    if (done.reliable < 4) continue;
    EXPECT_TRUE(done.exact);
    ++after;
  }
  EXPECT_GT(mixed, 0u);
  EXPECT_GT(after, 20u);
}

TEST(DeliverySwitch, reliable_operations_wait_for_a_rank_that_lossy_ones_leave_out) {
  for (const auto delivery : {Delivery::lossy, Delivery::automatic}) {
    LossyLinks links;
    LossyCluster cluster(links.settings(3));
    const auto options = calls(delivery, 0.05);
    uint64_t seed = 0;
    for (int i = 0; i < 25; ++i) (void)round(cluster, 3, options, ++seed);
    auto values = random_values(3, count, ++seed);
    const auto expected = mean_of(values);
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank rank = 0; rank < 2; ++rank) done.push_back(cluster.submit(rank, values[rank], options));
    // a lossy operation waits at most 5 ms (t_hard) for contributions, and then at most 5 ms for results
    cluster.pass(7 * millisecond);
    done.push_back(cluster.submit(2, values[2], options));
    cluster.finish(done);
    for (Rank rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(done[rank]->status.ok()) << done[rank]->status.to_string();
      EXPECT_EQ(values[rank] == expected, delivery == Delivery::automatic) << rank;
      EXPECT_EQ(done[rank]->report.contributors, delivery == Delivery::automatic || rank == 2 ? 3u : 2u) << rank;
    }
  }
}

TEST(DeliverySwitch, reliable_operations_ignore_lossy_deadlines_and_end_late_at_the_calls_timeout) {
  LossyLinks links;
  LossyCluster cluster(links.settings(3));
  auto options = calls(Delivery::automatic, 1);
  options.lossy.deadline = std::chrono::milliseconds(5);
  options.lossy.deadline_max = std::chrono::milliseconds(10);
  options.timeout = Milliseconds(300);
  cluster.network().cut_off(2, true);
  auto values = random_values(3, count, 1);
  std::vector<std::shared_ptr<Completion>> done;
  for (Rank rank = 0; rank < 2; ++rank) done.push_back(cluster.submit(rank, values[rank], options));
  const auto start = cluster.now();
  cluster.finish(done);
  EXPECT_EQ(cluster.now() - start, 300 * millisecond);
  for (const auto& completion : done) {
    EXPECT_EQ(completion->status.code(), Code::late) << completion->status.to_string();
    EXPECT_NE(completion->status.message().find("contributions incomplete: rank 2 (process 2)"), std::string::npos)
        << completion->status.message();
  }
}

TEST(DeliverySwitch, a_lost_rank_that_owns_nothing_ends_a_reliable_operation) {
  for (const auto delivery : {Delivery::lossy, Delivery::automatic}) {
    LossyLinks links;
    LossyCluster cluster(links.settings(3));
    std::vector<float> values[] = {{1}, {2}};  // the only element is owned by rank 0
    std::vector<std::shared_ptr<Completion>> done;
    for (Rank rank = 0; rank < 2; ++rank) done.push_back(cluster.submit(rank, values[rank], calls(delivery, 1)));
    cluster.pass(millisecond);
    cluster.group(0).peer_lost(2, {Code::peer_lost, "gone"}, cluster.now());
    cluster.pass(millisecond);
    ASSERT_TRUE(done[0]->done);
    if (delivery == Delivery::lossy) EXPECT_TRUE(done[0]->status.ok()) << done[0]->status.to_string();
    else EXPECT_EQ(done[0]->status.code(), Code::peer_lost) << done[0]->status.to_string();
  }
}

TEST(DeliverySwitch, lossy_and_automatic_calls_of_one_group_switch_independently) {
  LossyLinks links{.loss = 0.5};
  LossyCluster cluster(links.settings(2));
  uint64_t seed = 0;
  for (int i = 0; i < 30; ++i) (void)round(cluster, 2, calls(Delivery::lossy, 1), ++seed);
  EXPECT_EQ(round(cluster, 2, calls(Delivery::lossy, 1), ++seed).reliable, 2u);
  const auto automatic = round(cluster, 2, calls(Delivery::automatic, 1), ++seed);
  EXPECT_EQ(automatic.reliable, 2u);
  EXPECT_EQ(automatic.reports[0]->note, "");
}

}  // namespace
}  // namespace unisono::sim

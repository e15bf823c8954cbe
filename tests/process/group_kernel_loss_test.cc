// Training with a sharded optimizer in real processes, with a stopped rank, or while the kernel drops packets: single ones,
// bursts, outages, full queues. Test names contain the numbers of the checks in docs/design/methods/packet_loss.md, "Checked
// values".
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <optional>

#include "base/concat.h"
#include "lossy_hosts.h"

namespace unisono::testing {
namespace {

constexpr const char* counted = "meta l4proto udp counter";
constexpr const char* learning = "sharded_step:iters=25";  // 25 steps, as deadlines are learned within 20

class LongKernelLoss : public LossyHosts {
 protected:
  // Options without retransmission; only while deadlines are learned is data sent again.
  static std::string made(const std::string& more) {
    return "sharded_make:values=262144,options=loss_budget~1/loss_off~1/stale_max~0/backup~0/" + more;
  }

  // Starts four hosts that send single packets, and makes sharded steps with `options`. No packets are dropped yet.
  void begin(const std::string& options) {
    for (const char host : hosts_->names()) hosts_->send_single_segments(std::string(1, host));
    ASSERT_EQ(hosts_->error(), "");
    group_.emplace(4, LossyHosts::options(*hosts_));
    expect_all_ok(group_->ask_all(made(options)));
  }
  void SetUp() override {
    LossyHosts::SetUp();
    if (!IsSkipped()) hosts_.emplace("abcd");
  }
  void TearDown() override { group_.reset(); }

  static double sum(const std::vector<Line>& lines, const std::string& key) {
    double all = 0;
    for (const auto& line : lines) all += std::strtod(line.value(key).c_str(), nullptr);
    return all;
  }
  // slack: loss that is allowed in addition to the packets that the kernel drops. It occurs, for example, when a rank gets no
  // processor for a while.
  static void expect_share(const std::string& what, double found, double of, double expected, double slack) {
    const double deviation = std::sqrt(expected * (1 - expected) / of);
    std::printf("    %s: %.0f of %.0f, %.3f %%\n", what.c_str(), found, of, 100 * found / of);
    EXPECT_NEAR(found / of, expected, 4 * deviation + slack) << what;
  }
  static void expect_drift(const std::vector<Line>& lines, double owner_tolerance, double pair_tolerance) {
    for (const std::string which : {"owner", "pair"}) {
      const double ratio = sum(lines, which) / sum(lines, which + "_expected");
      std::printf("    drift, %s: %.3f of what the formula says\n", which.c_str(), ratio);
      EXPECT_NEAR(ratio, 1, which == "owner" ? owner_tolerance : pair_tolerance) << which;
    }
  }
  // Makes steps until all data arrives in one, which may take several on busy cores. After that step all replicas must be equal
  // (check B6 of docs/design/methods/packet_loss.md).
  void expect_healed() {
    hosts_->filter({});
    std::vector<Line> lines;
    double stale = 1;
    for (int step = 0; step < 20 && stale > 0; ++step) {
      lines = group_->ask_all("sharded_step");
      expect_all_ok(lines);
      stale = sum(lines, "stale");
    }
    EXPECT_EQ(stale, 0);
    for (const auto& line : lines) EXPECT_EQ(line.value("parameters"), lines[0].value("parameters")) << line.text;
  }

  std::optional<Hosts> hosts_;
  std::optional<Cluster> group_;
};

TEST_F(LongKernelLoss, equals_the_reported_loss_E1_and_drift_equals_the_formulae_B1_B2) {
  ASSERT_NO_FATAL_FAILURE(begin("drift~1"));
  expect_all_ok(group_->ask_all(learning));
  for (const int percent : {1, 5, 10, 20}) {
    hosts_->filter({counted, concat("meta l4proto udp numgen random mod 100 < ", percent, " counter drop")});
    ASSERT_EQ(hosts_->error(), "");
    expect_all_ok(group_->ask_all("sharded_step:iters=12"));  // enough steps for stale ranges to reach their usual ages
    const bool often_old = percent >= 10;                     // only then are there enough stale ranges to measure drift
    const auto lines = group_->ask_all(concat("sharded_step:iters=", often_old ? 500 : 100));
    expect_all_ok(lines);
    EXPECT_EQ(sum(lines, "learning"), 0);
    double arrived = 0, dropped = 0;
    for (const char host : hosts_->names()) {
      const auto counts = hosts_->packet_counts(host);
      ASSERT_EQ(counts.size(), 2u);
      arrived += static_cast<double>(counts[0]), dropped += static_cast<double>(counts[1]);
    }
    expect_share("dropped by the kernels", dropped, arrived, percent / 100.0, 0);
    expect_share("missing", sum(lines, "missing"), sum(lines, "expected"), percent / 100.0, 0.003);
    // The nominal tolerance is 5 %, but 7 % for the owner ratio. On busy cores, a deadline sometimes cuts a whole stream. Many
    // ranges are then stale at once, so the mean is less certain. In eight runs, owner ratios were 1.003 to 1.034, and pair
    // ratios 0.997 to 1.009.
    if (often_old) {
      expect_drift(lines, 0.07, 0.05);
      const double identity = sum(lines, "pair") / sum(lines, "attributed");
      std::printf("    drift, pair: %.3f of the form 2p/(1+p) times the gap where one received\n", identity);
      EXPECT_NEAR(identity, 1, 0.03);
    }
  }
  expect_healed();
  group_->finish();
}

TEST_F(LongKernelLoss, in_bursts_and_outages_leaves_replicas_bounded_and_heals_E5) {
  ASSERT_NO_FATAL_FAILURE(begin("drift~1"));
  expect_all_ok(group_->ask_all(learning));
  for (const bool outages : {false, true}) {
    if (outages) {
      // One packet in 2000 at random starts an outage: all packets of its sender are dropped for 20 ms.
      hosts_->filter({"meta l4proto udp ip saddr @gone counter drop",
                      "meta l4proto udp numgen random mod 2000 < 1 add @gone { ip saddr timeout 20ms } counter drop"},
                     "add set ip doctor gone { type ipv4_addr; flags dynamic, timeout; timeout 20ms; }; ");
    } else {
      hosts_->filter({"meta l4proto udp numgen inc mod 50 < 5 counter drop"});
    }
    ASSERT_EQ(hosts_->error(), "");
    expect_all_ok(group_->ask_all("sharded_step:iters=12"));
    const auto lines = group_->ask_all("sharded_step:iters=80");
    expect_all_ok(lines);
    std::printf("    %s: %.1f %% of ranges old after a step, the oldest %lld steps; %.0f streams cut\n",
                outages ? "outages" : "bursts", 100 * sum(lines, "stale") / sum(lines, "ranges"),
                static_cast<long long>(lines[0].number("age_max")), sum(lines, "cut"));
    EXPECT_GT(sum(lines, "stale"), 0);
    // Losses within a burst are not independent. So there are fewer independent losses, and the formulae fit less well.
    expect_drift(lines, 0.4, 0.4);
    const auto dropped = hosts_->packet_counts('a');
    ASSERT_FALSE(dropped.empty());
    EXPECT_GT(dropped[0], 0u);
    expect_healed();
  }
  group_->finish();
}

TEST_F(LongKernelLoss, in_a_full_queue_is_rare_when_the_rate_is_learned_E3) {
  for (const char host : hosts_->names()) {
    hosts_->run_in("switch", {"tc", "qdisc", "add", "dev", std::string("port-") + host, "root", "tbf", "rate", "200mbit",
                              "burst", "32kb", "limit", "256kb"});
  }
  ASSERT_NO_FATAL_FAILURE(begin("drift~0"));
  expect_all_ok(group_->ask_all("sharded_step:iters=50"));
  const auto packets = [&] {
    std::array<double, 2> all{};
    for (const char host : hosts_->names()) {
      const auto counts = hosts_->queue_counts(host);
      all[0] += static_cast<double>(counts[0]), all[1] += static_cast<double>(counts[1]);
    }
    return all;
  };
  // A stream is also cut if its sender gets no processor. So one of up to five rounds must have at most 0.5 % missing ranges.
  // In every round, however, the queues may drop at most 1 % of the packets.
  double missed = 1;
  for (int spell = 0; spell < 5 && missed > 0.005; ++spell) {
    const auto before = packets();
    const auto lines = group_->ask_all("sharded_step:iters=40");
    expect_all_ok(lines);
    const auto after = packets();
    ASSERT_EQ(hosts_->error(), "");
    missed = sum(lines, "stale") / sum(lines, "ranges");
    const double sent = after[0] - before[0], dropped = after[1] - before[1];
    std::printf("    %.3f %% of ranges not delivered, %.0f streams cut; queues dropped %.0f of %.0f packets\n", 100 * missed,
                sum(lines, "cut"), dropped, sent + dropped);
    EXPECT_LE(dropped, 0.01 * (sent + dropped));
  }
  EXPECT_LE(missed, 0.005);
  group_->finish();
}

TEST_F(LongKernelLoss, with_a_stopped_rank_E4) {
  ASSERT_NO_FATAL_FAILURE(begin("drift~0"));
  expect_all_ok(group_->ask_all("sharded_step:until=25"));
  lose(*hosts_, 10);
  expect_all_ok(group_->ask_all("sharded_step:until=30"));
  const std::vector<size_t> left{0, 1, 3};
  (*group_)[2].signal(SIGSTOP);
  ASSERT_TRUE((*group_)[2].wait_stopped());
  const auto without = group_->ask(left, "sharded_step:until=32");
  expect_all_ok(without);
  for (const auto& line : without) {
    std::printf("    two steps without a rank: the longest took %lld us\n", static_cast<long long>(line.number("longest_us")));
    EXPECT_TRUE(line.says("rank 2 (host host-c")) << line.text;
    expect_within("beyond a phase's deadline", line.number("overdue_us") * 1000, 20);
  }
  // The rank continues, and joins the others in their newest step. It skips the steps that it missed (`behind`), or completes
  // them quickly, if their data is in its sockets.
  (*group_)[2].signal(SIGCONT);
  const auto together = group_->ask_all("sharded_step:until=36");
  expect_all_ok(together);
  std::printf("    it left out %lld steps\n", static_cast<long long>(together[2].number("behind")));
  for (const auto& line : together) EXPECT_EQ(line.number("step"), 36) << line.text;
  expect_healed();
  // Now the rank stays stopped: the others are notified that it is lost, and continue without it.
  (*group_)[2].signal(SIGSTOP);
  ASSERT_TRUE((*group_)[2].wait_stopped());
  const auto begun = now_ns();
  for (const auto& line : group_->ask(left, "sharded_step:iters=1000000")) {
    EXPECT_EQ(line.code(), "peer_lost") << line.text;
    EXPECT_TRUE(line.says("rank 2")) << line.text;
    expect_within("loss reported after", line.at() - begun, 5000);
  }
  expect_all_ok(group_->ask(left, "reform"));
  const auto resumed = group_->ask(left, "sharded_resume");
  expect_all_ok(resumed);
  for (const auto& line : resumed) EXPECT_EQ(line.number("step"), resumed[0].number("step")) << line.text;
  expect_all_ok(group_->ask(left, "sharded_step:iters=30"));
  (*group_)[2].signal(SIGKILL);
  group_->finish(left);
}

}  // namespace
}  // namespace unisono::testing

// Links of the TCP transport over virtual connections, on random schedules. Every seed gives another network, other sizes and
// other faults. UNISONO_TEST_SEEDS raises the number of seeds, and UNISONO_TEST_SEED runs one.
#include <gtest/gtest.h>

#include <cstdlib>

#include "sim/tcp/links_plan_test_support.h"
#include "sim/tcp/links_run_test_support.h"

namespace unisono::sim {
namespace {

struct Totals {
  uint64_t received = 0, losses = 0, cancels = 0;
};

// Runs the plan of each seed. With a failure comes the end of its trace.
Totals run_all(Seeds range, LinksPlan (*plan_for)(uint64_t)) {
  Totals totals;
  int failures = 0;
  for (auto seed = range.first; seed < range.end && failures < 3; ++seed) {
    LinksRun run(plan_for(seed));
    if (!run.run().empty()) {
      LinksRun again(plan_for(seed));
      again.keep_trace();
      ADD_FAILURE() << "UNISONO_TEST_SEED=" << seed << ": " << again.run();
      ++failures;
    }
    totals.received += run.received();
    totals.losses += run.losses();
    totals.cancels += run.cancels();
  }
  return totals;
}

TEST(TcpLinks, without_faults_everything_arrives_and_no_link_is_lost) {
  const auto totals = run_all(seeds(120), plan_of);
  EXPECT_GT(totals.received, 0u);
  EXPECT_GT(totals.cancels, 0u);
}

// Packets are lost for a while, connections are slow, processes stop. TCP repairs all of it.
LinksPlan with_mild_faults(uint64_t seed) {
  auto plan = plan_of(seed);
  plan.fault_chance = 0.02;
  plan.faults = {LinkFault::outage, LinkFault::one_way_outage, LinkFault::slow, LinkFault::stop};
  return plan;
}

TEST(TcpLinks, outages_and_stops_lose_no_link) {
  const auto totals = run_all(seeds(80), with_mild_faults);
  EXPECT_GT(totals.received, 0u);
}

LinksPlan with_all_faults(uint64_t seed) {
  auto plan = plan_of(seed);
  Random random(mix64(seed) ^ 0x72);
  plan.fault_chance = random.chance(0.5) ? 0.005 : 0.03;
  for (int fault = 0; fault < link_fault_count; ++fault) {
    if (random.chance(0.5)) plan.faults.push_back(static_cast<LinkFault>(fault));
  }
  if (plan.faults.empty()) plan.faults.push_back(LinkFault::reset);
  return plan;
}

TEST(TcpLinks, under_faults_frames_arrive_once_and_in_order_and_losses_are_told) {
  const auto totals = run_all(seeds(120), with_all_faults);
  if (std::getenv("UNISONO_TEST_SEED") == nullptr) {
    EXPECT_GT(totals.losses, 50u);
  }
}

}  // namespace
}  // namespace unisono::sim

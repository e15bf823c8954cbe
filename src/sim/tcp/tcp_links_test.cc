// Links of the TCP transport over virtual connections, on random schedules. Every seed gives another network, other sizes and
// other faults. UNISONO_TEST_SEEDS raises the number of seeds, and UNISONO_TEST_SEED runs one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "sim/tcp/links_run_test_support.h"

namespace unisono::sim {
namespace {

struct Seeds {
  uint64_t first = 0, end = 0;
};

Seeds seeds(uint64_t count) {
  if (const char* text = std::getenv("UNISONO_TEST_SEED")) {
    const auto seed = std::strtoull(text, nullptr, 10);
    return {seed, seed + 1};
  }
  const char* text = std::getenv("UNISONO_TEST_SEEDS");
  return {0, text == nullptr ? count : std::strtoull(text, nullptr, 10)};
}

// A network and sizes from the seed, without faults.
LinksPlan plan_of(uint64_t seed) {
  Random random(mix64(seed) ^ 0x71);
  LinksPlan plan{.seed = seed};
  auto& streams = plan.streams;
  streams.seed = random.next();
  streams.delay = static_cast<Nanos>(10 + random.below(200)) * microsecond;
  streams.jitter = static_cast<Nanos>(random.below(200)) * microsecond;
  streams.send_queue_bytes = 200 + random.below(random.chance(0.5) ? 1000 : 60'000);
  streams.receive_queue_bytes = 200 + random.below(random.chance(0.5) ? 1000 : 60'000);
  streams.segment_bytes_max = 100 + random.below(3000);
  if (random.chance(0.2)) streams.record_bytes_max = 1 + random.below(150);
  streams.short_write = random.chance(0.5) ? 0.3 : 0;
  streams.short_read = random.chance(0.3) ? 0.3 : 0;
  streams.acknowledgement_delay = random.chance(0.5) ? millisecond : 0;
  streams.late_arrival = 0.5;
  auto& transport = plan.transport;
  transport.streams = random.chance(0.6) ? 1 : static_cast<uint32_t>(2 + random.below(4));
  transport.payload_checksum = random.chance(0.2);
  transport.link.queue_frames_max = 1 + random.below(16);
  transport.pool.owner_bytes_max = 4096u << random.below(6);
  plan.payload_bytes_max = std::min<size_t>(20'000, 20 * std::min(streams.send_queue_bytes, streams.receive_queue_bytes));
  plan.processes = random.chance(0.3) ? 3 : 2;
  plan.relayed = random.chance(0.2);
  plan.sleeps = random.chance(0.5);
  return plan;
}

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

// Encrypted links over virtual connections, on random schedules, and with somebody on the path who alters bytes. Frames must
// arrive once, in order and unchanged. A link is lost only if altered bytes cannot be sent again.
#include <gtest/gtest.h>

#include "sim/tcp/links_plan_test_support.h"
#include "sim/tcp/links_run_test_support.h"
#include "tls/tls_context.h"

namespace unisono::sim {
namespace {

LinksPlan encrypted_plan(uint64_t seed) {
  static const auto tls = *TlsContext::make({*SecretKey::draw()});
  auto plan = plan_of(seed);
  plan.transport.tls = tls;
  plan.streams.record_bytes_max = 0;
  return plan;
}

uint64_t run_all(Seeds range, const std::vector<LinkFault>& faults) {
  uint64_t received = 0;
  int failures = 0;
  for (auto seed = range.first; seed < range.end && failures < 3; ++seed) {
    auto plan = encrypted_plan(seed);
    plan.faults = faults;
    plan.fault_chance = faults.empty() ? 0 : seed % 2 == 0 ? 0.005 : 0.03;
    LinksRun run(plan);
    if (!run.run().empty()) {
      LinksRun again(plan);
      again.keep_trace();
      ADD_FAILURE() << "UNISONO_TEST_SEED=" << seed << ": " << again.run();
      ++failures;
    }
    received += run.received();
  }
  return received;
}

TEST(EncryptedLinks, without_faults_everything_arrives_and_no_link_is_lost) { EXPECT_GT(run_all(seeds(60), {}), 0u); }

TEST(EncryptedLinks, resets_and_outages_lose_nothing) {
  EXPECT_GT(run_all(seeds(60), {LinkFault::reset, LinkFault::relay_drop, LinkFault::forget_path, LinkFault::outage,
                                LinkFault::one_way_outage, LinkFault::slow, LinkFault::stop}),
            0u);
}

TEST(EncryptedLinks, altered_bytes_are_never_delivered_and_the_link_heals_or_says_why_not) {
  EXPECT_GT(run_all(seeds(100), {LinkFault::alter}), 0u);
}

TEST(EncryptedLinks, altered_bytes_beside_resets_and_outages_lose_nothing) {
  EXPECT_GT(run_all(seeds(60), {LinkFault::alter, LinkFault::alter, LinkFault::reset, LinkFault::outage, LinkFault::slow}), 0u);
}

}  // namespace
}  // namespace unisono::sim

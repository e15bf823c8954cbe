// Check A26 of docs/design/methods/moshpit.md: the verdict under random schedules. In some runs messages are lost or doubled,
// wake-ups are late, members crash between any two sends, or deaths are reported falsely. No two members may decide
// differently. In runs without loss, all living members must decide soon.

#include <gtest/gtest.h>

#include "base/concat.h"
#include "elastic/round/verdict_test_support.h"

namespace unisono {
namespace {

using test::VirtualGroup;
using test::VirtualGroupOptions;

constexpr Nanos ballot = 1 * second;
constexpr size_t chunks = 6;

class RandomGroup {
 public:
  RandomGroup(uint64_t seed, bool lossy) : random_(mix64(seed)), lossy_(lossy) {
    options_.members = static_cast<uint32_t>(1 + random_.below(7));
    options_.proposer.assign(options_.members, true);
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      if (random_.chance(0.15)) options_.proposer[rank] = false;
    }
    options_.proposer[random_.below(options_.members)] = true;
    options_.chunks = chunks;
    options_.ballot_timeout = ballot;
    options_.delay_min = millisecond;
    // True: delays are so long that ballots may disturb each other for ever.
    slow_ = lossy && random_.chance(0.5);
    options_.delay_max = slow_ ? 2 * ballot : ballot / 4 - millisecond;
    if (lossy) {
      options_.loss = 0.2;
      options_.duplicates = 0.2;
      options_.wake_late_max = slow_ && random_.chance(0.3) ? ballot : 0;
    }
    options_.seed = seed;
    group_.emplace(options_);
    plan_haves();
    plan_crashes();
  }

  void run() { group_->run(200 * ballot); }

  void expect_agreement_and_validity() const {
    const ChunkBits* first = nullptr;
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      const auto* decided = group_->machine(rank).decided();
      if (decided == nullptr) continue;
      if (first == nullptr) first = decided;
      EXPECT_EQ(test::to_string(*decided), test::to_string(*first)) << "rank " << rank << " decided differently";
    }
    for (size_t chunk = 0; first != nullptr && chunk < chunks; ++chunk) {
      uint32_t holders = 0;
      for (uint32_t rank = 0; rank < options_.members; ++rank)
        holders += group_->had(rank) && group_->had(rank)->test(chunk) ? 1 : 0;
      EXPECT_TRUE(!first->test(chunk) || holders > options_.members / 2) << "chunk " << chunk << ": " << holders << " holders";
    }
  }

  // If a living member may propose, checks that all living members decide. Each ballot except the last one may end by a crash.
  // So the limit is (members + 2) ballot_timeouts, counted from the last have() or crash.
  void expect_all_decided() const {
    uint32_t living = 0;
    bool proposer_lives = false;
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      living += group_->alive(rank) ? 1 : 0;
      proposer_lives = proposer_lives || (group_->alive(rank) && options_.proposer[rank]);
    }
    ASSERT_GE(living, options_.members / 2 + 1);
    if (!proposer_lives || slow_) return;
    const Nanos soon = std::max(last_have_, group_->last_crash()) + (options_.members + 2) * ballot;
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      if (!group_->alive(rank)) continue;
      EXPECT_NE(group_->decided_at(rank), never) << "rank " << rank << " never decided";
      EXPECT_TRUE(lossy_ || group_->decided_at(rank) <= soon) << "rank " << rank << " decided late";
      EXPECT_EQ(group_->machine(rank).next_deadline(), never);
    }
  }
  bool decided_something() const {
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      const auto* decided = group_->machine(rank).decided();
      if (decided != nullptr && !decided->none()) return true;
    }
    return false;
  }

 private:
  Nanos up_to(Nanos bound) { return static_cast<Nanos>(random_.below(static_cast<uint64_t>(bound))); }

  void plan_haves() {
    const double density = 0.4 + 0.6 * random_.unit();
    for (uint32_t rank = 0; rank < options_.members; ++rank) {
      ChunkBits mine(chunks);
      for (size_t chunk = 0; chunk < chunks; ++chunk) {
        if (random_.chance(density)) mine.set(chunk);
      }
      const Nanos when = up_to(random_.chance(0.3) ? 3 * ballot : ballot / 10);
      last_have_ = std::max(last_have_, when);
      group_->have_at(rank, mine, when);
    }
  }

  // Plans crashes of a random minority at random times. Reports random members as gone, whether they crash or not.
  void plan_crashes() {
    const uint64_t crashes = random_.below((options_.members - 1) / 2 + 1);
    for (uint64_t i = 0; i < crashes; ++i) {
      const auto rank = static_cast<uint32_t>(random_.below(options_.members));
      if (random_.chance(0.8)) group_->crash_before_send(rank, static_cast<uint32_t>(random_.below(3 * options_.members)));
      else group_->crash_at(rank, up_to(3 * ballot));
    }
    for (uint64_t i = random_.below(options_.members); i > 0; --i) {
      const auto gone = static_cast<uint32_t>(random_.below(options_.members));
      group_->gone_at(gone, static_cast<uint32_t>(random_.below(options_.members)), up_to(2 * ballot));
    }
  }

  Random random_;
  bool lossy_;
  bool slow_ = false;
  VirtualGroupOptions options_;
  std::optional<VirtualGroup> group_;
  Nanos last_have_ = 0;
};

void simulate(uint64_t first_seed, uint64_t seeds, bool lossy) {
  uint64_t decided_runs = 0;
  for (uint64_t seed = first_seed; seed < first_seed + seeds; ++seed) {
    SCOPED_TRACE(concat("seed ", seed));
    RandomGroup group(seed, lossy);
    group.run();
    group.expect_agreement_and_validity();
    group.expect_all_decided();
    decided_runs += group.decided_something() ? 1 : 0;
    if (::testing::Test::HasFailure()) FAIL() << "first failing seed: " << seed;
  }
  EXPECT_GE(decided_runs, seeds / 2) << "most schedules decided that nothing is applied: they test little";
}

TEST(VerdictSimulation, a26_no_two_members_decide_differently_whatever_is_lost) { simulate(1, 3000, true); }
TEST(VerdictSimulation, a26_all_members_decide_if_nothing_is_lost) { simulate(1, 3000, false); }
TEST(VerdictLongSimulation, a26_no_two_members_decide_differently_whatever_is_lost) { simulate(1'000'000, 100'000, true); }
TEST(VerdictLongSimulation, a26_all_members_decide_if_nothing_is_lost) { simulate(2'000'000, 100'000, false); }

}  // namespace
}  // namespace unisono

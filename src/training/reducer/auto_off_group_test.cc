// All ranks of a group switch compression off in the same step, because of measured step times. The test makes compressed or
// uncompressed steps slow, by extra work that takes many times as long as a step.
#include <gtest/gtest.h>

#include <array>
#include <barrier>

#include "base/concat.h"
#include "testing/group_of_threads.h"
#include "training/reducer/gradient_reducer_test_support.h"
#include "training/reducer/reducer.h"

namespace unisono {
namespace {

using test::in_group;
using test::Ledger;
using test::normals;
using test::ReducerRank;
using test::Values;

constexpr uint64_t start = 25, window = 20;
// With these rates, compression is predicted to pay for every bucket: links are slow, and memory is fast.
constexpr MachineRates promising{.ranks = 3, .latency_s = 1e-6, .link_bytes_per_s = 1e6, .memory_bytes_per_s = 1e12};

struct Seen {
  std::vector<uint32_t> compressed;
  std::vector<std::string> off;
  std::vector<uint64_t> state_bytes;
  std::vector<std::vector<Values>> averages;
  friend bool operator==(const Seen&, const Seen&) = default;
};

// Runs the steps of one rank. Either its compressed or its uncompressed steps do much extra work.
class TimedRun {
 public:
  TimedRun(Group& group, bool whole_is_slow, Ledger& ledger)
      : rank_(group), beside_(group), whole_is_slow_(whole_is_slow), ledger_(ledger) {
    auto made =
        internal::Reducer::make(group, test::model, *Compression::parse(concat("arc:min_elements=0,start=", start)), promising);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    reducer_ = std::move(*made);
    EXPECT_TRUE(beside_.make(test::arc()).ok());
  }
  void step(uint64_t number) {
    rank_.fill(number);
    ledger_.give(rank_);
    if ((number < start) == whole_is_slow_) work();
    std::vector<Gradient> bucket;
    for (size_t i = 0; i < test::model.size(); ++i)
      bucket.push_back({.name = test::model[i].name, .values = rank_.values[i].data()});
    EXPECT_TRUE(reducer_->reduce(bucket).ok());
    const auto report = reducer_->finish();
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    ledger_.deliver(rank_);
    seen_.compressed.push_back(report->compressed);
    seen_.off.push_back(report->off);
    seen_.state_bytes.push_back(report->state_bytes);
    seen_.averages.push_back(rank_.values);
  }
  const Seen& seen() const { return seen_; }
  // Adds this rank's residuals to the ledger.
  void keep() {
    auto checkpoint = decode_checkpoint(reducer_->save());
    ASSERT_TRUE(checkpoint.ok());
    std::vector<Values> left;
    for (size_t i = 0; i < test::model.size(); ++i)
      left.push_back(checkpoint->store[test::model[i].name].residual), left.back().resize(rank_.values[i].size());
    ledger_.keep(left);
  }

 private:
  // Runs twenty extra steps. They take longer than delays by other load on the machine.
  void work() {
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(beside_.step(0).ok());
  }

  ReducerRank rank_, beside_;
  const bool whole_is_slow_;
  Ledger& ledger_;
  std::unique_ptr<internal::Reducer> reducer_;
  Seen seen_;
};

std::array<Seen, 3> run(bool whole_is_slow, uint64_t steps, Ledger& ledger) {
  std::array<Seen, 3> seen;
  in_group(3, [&](Group& group) {
    TimedRun rank(group, whole_is_slow, ledger);
    for (uint64_t step = 0; step < steps; ++step) rank.step(step);
    rank.keep();
    seen[group.rank()] = rank.seen();
  });
  return seen;
}

TEST(AutoOffInGroup, switches_off_on_all_ranks_in_the_same_step_with_a_reason_and_no_residual) {
  Ledger ledger;
  const auto seen = run(false, start + window + 5, ledger);
  for (const auto& each : seen) EXPECT_EQ(each, seen[0]);
  const auto& one = seen[0];
  for (uint64_t step = 0; step < start + window + 5; ++step) {
    EXPECT_EQ(one.compressed[step] > 0, step >= start && step < start + window) << step;
    const bool is_off = step >= start + window - 1;  // the decision is made at the end of step start + window - 1
    EXPECT_EQ(one.off[step].find("the gain is less than 3 %") != std::string::npos, is_off) << step << ": " << one.off[step];
  }
  EXPECT_GT(one.state_bytes[start + window - 1], 0u);
  // The step after the decision sends all residuals.
  for (uint64_t step = start + window; step < start + window + 5; ++step) EXPECT_EQ(one.state_bytes[step], 0u) << step;
  ledger.expect_balanced();
}

TEST(AutoOffInGroup, continues_compressing_if_it_pays) {
  Ledger ledger;
  const auto seen = run(true, start + window + 5, ledger);
  for (const auto& each : seen) EXPECT_EQ(each, seen[0]);
  for (uint64_t step = start; step < start + window + 5; ++step) {
    EXPECT_GT(seen[0].compressed[step], 0u) << step;
    EXPECT_EQ(seen[0].off[step], "");
  }
  ledger.expect_balanced();
}

// Until steps have been timed, the predicted times decide. With the rates `hopeless` no bucket is compressed; with `promising`
// both are.
TEST(AutoOffInGroup, sends_buckets_uncompressed_if_measured_rates_predict_no_gain) {
  constexpr MachineRates hopeless{.ranks = 2, .latency_s = 1e-6, .link_bytes_per_s = 1e12, .memory_bytes_per_s = 1e6};
  for (const bool pays : {false, true}) {
    in_group(2, [&](Group& group) {
      auto rates = pays ? promising : hopeless;
      rates.ranks = 2;
      const auto reducer =
          std::move(*internal::Reducer::make(group, test::model, *Compression::parse("arc:start=0,min_elements=0"), rates));
      ReducerRank rank(group);
      rank.fill(0);
      for (const size_t i : {0, 4}) {
        const Gradient bucket[] = {{.name = test::model[i].name, .values = rank.values[i].data()}};
        ASSERT_TRUE(reducer->reduce(bucket).ok());
      }
      const auto report = reducer->finish();
      ASSERT_TRUE(report.ok());
      EXPECT_EQ(report->compressed, pays ? 2u : 0u);
      EXPECT_EQ(report->costs.collectives, pays ? 4u : 2u);
      EXPECT_EQ(report->off.find("2 of 2 buckets are sent whole") != std::string::npos, !pays) << report->off;
    });
  }
}

}  // namespace
}  // namespace unisono

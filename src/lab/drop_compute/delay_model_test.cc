#include "lab/drop_compute/delay_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/concat.h"

namespace unisono::sim {
namespace {

DelayModel model_of(const std::string& text) {
  const auto model = DelayModel::parse(text);
  EXPECT_TRUE(model.ok()) << text << ": " << model.status().to_string();
  return model.ok() ? *model : DelayModel{};
}

struct Sample {
  double mean = 0, variance = 0;
  std::vector<double> values;
  double share_above(double value) const {
    return static_cast<double>(std::count_if(values.begin(), values.end(), [&](double each) { return each > value; })) /
           static_cast<double>(values.size());
  }
};

Sample latencies(const DelayModel& model, size_t count, uint64_t seed) {
  Sample sample;
  Random random(seed);
  for (size_t i = 0; i < count; ++i) sample.values.push_back(model.latency(random, 0));
  for (const double value : sample.values) sample.mean += value / static_cast<double>(count);
  for (const double value : sample.values)
    sample.variance += (value - sample.mean) * (value - sample.mean) / static_cast<double>(count);
  return sample;
}

TEST(DelayModel, parse_reads_what_to_string_writes) {
  for (const char* text : {"constant:base=1", "L:mu=0.02", "R:compute=1,factor=0.5", "G:mean=1,sd=0.25", "exp:base=1,mean=0.3",
                           "gamma:base=1,mean=0.3,sd=0.2", "bernoulli:base=1,mean=0.3,sd=0.2",
                           "lognormal:base=0,mean=0.3,sd=0.2", "normal0:base=1,mean=-0.1,sd=0.2", "L:mu=1,slow=0x2",
                           "L:mu=1,cap=0.3", "L:mu=1,cap=2,slow=3x2", "constant:base=1e-06,slow=7x1.5"}) {
    EXPECT_EQ(model_of(text).to_string(), text);
    EXPECT_EQ(model_of(model_of(text).to_string()).to_string(), text);
  }
  const auto read = model_of("gamma:sd=0.2,slow=7x2,mean=0.3");
  EXPECT_EQ(read.law, DelayModel::Law::gamma);
  EXPECT_EQ(read.base, 1);
  EXPECT_EQ(read.mean, .3);
  EXPECT_EQ(read.deviation, .2);
  EXPECT_EQ(read.slow_worker, 7);
  EXPECT_EQ(read.slow_factor, 2);
  EXPECT_EQ(model_of("L").base, 1);
  EXPECT_EQ(model_of("L").cap, 5.5);
  EXPECT_EQ(model_of("L:cap=5.5").to_string(), "L:mu=1") << "the usual cap is not written";
}

TEST(DelayModel, parse_refuses_a_wrong_model_and_names_the_wrong_part) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "law \"\" is none of constant, L, R, G"},
      {"M:mu=1", "law \"M\""},
      {"L:", "\"\" is none of mu, cap, slow"},
      {"L:mu", "mu: not a number"},
      {"L:mu=", "mu=: not a number"},
      {"L:mu=1s", "mu=1s"},
      {"L:mu=-1", "mu=-1"},
      {"L:mu=nan", "mu=nan"},
      {"L:mu=inf", "mu=inf"},
      {"L:mu=2e6", "mu=2e6"},
      {"L:mu=1,mu=2", "mu=2: given twice"},
      {"L:sd=1", "\"sd=1\" is none of mu, cap, slow"},
      {"L:cap=-1", "cap=-1: not a number from 0 to 1e6"},
      {"G:cap=1", "\"cap=1\" is none of mean, sd, slow"},
      {"L:mu=0", "the mean latency must be above 0"},
      {"G:mean=1,sd=-1", "sd=-1"},
      {"G:mean=-1,sd=1", "mean=-1"},
      {"exp:base=1,sd=1", "\"sd=1\" is none of base, mean, slow"},
      {"gamma:base=1,sd=1", "mean=0 with sd > 0"},
      {"lognormal:base=1,sd=1", "mean=0 with sd > 0"},
      {"bernoulli:base=1,sd=1", "mean=0 with sd > 0"},
      {"R:factor=-1", "factor=-1"},
      {"constant:base=0", "the mean latency must be above 0"},
      {"L:slow=7", "slow=7: it looks like 3x2"},
      {"L:slow=x2", "slow=x2"},
      {"L:slow=-1x2", "slow=-1x2"},
      {"L:slow=1x0", "slow=1x0"},
      {"L:slow=1xnan", "slow=1xnan"},
      {"L:slow=1x2x", "slow=1x2x"},
  };
  for (const auto& [text, says] : wrong) {
    const auto read = DelayModel::parse(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_EQ(read.status().code(), Code::invalid);
    EXPECT_NE(read.status().message().find("bad_delay_model"), std::string::npos) << read.status().message();
    EXPECT_NE(read.status().message().find(says), std::string::npos) << text << ": " << read.status().message();
  }
}

// Check 16 of docs/design/methods/drop_compute.md, by formulae.
TEST(DelayModel, moments_are_the_specified_ones) {
  const auto paper = model_of("L:mu=1");
  EXPECT_NEAR(paper.latency_mean(), 1.495904, 1e-6);
  EXPECT_NEAR(std::pow(paper.latency_deviation(), 2), .365008, 1e-6);
  const auto reference = model_of("R:compute=1,factor=1");
  EXPECT_NEAR(reference.latency_mean(), 1.5, 1e-12);
  EXPECT_NEAR(std::pow(reference.latency_deviation(), 2), .337502, 1e-6);
  // Nothing is capped below a cap that is far away: the moments are those of the law without one.
  EXPECT_NEAR(model_of("L:mu=1,cap=1e6").latency_mean(), 1.5, 1e-6);
  EXPECT_NEAR(std::pow(model_of("L:mu=1,cap=1e6").latency_deviation(), 2), .25 * (std::exp(1) - 1), 1e-6);
  EXPECT_EQ(model_of("L:mu=3,cap=0").latency_mean(), 3);
  EXPECT_EQ(model_of("L:mu=3,cap=0").latency_deviation(), 0);
  // Latencies are proportional to the unit of time, and the delay of R is proportional to its factor.
  EXPECT_NEAR(model_of("L:mu=0.002").latency_deviation(), .002 * paper.latency_deviation(), 1e-15);
  EXPECT_NEAR(model_of("R:compute=2,factor=3").latency_mean(), 5, 1e-12);
  EXPECT_NEAR(model_of("R:compute=2,factor=3").latency_deviation(), 6 * reference.latency_deviation(), 1e-12);
}

TEST(DelayModel, draws_of_the_reference_are_whole_multiples_of_its_least_delay) {
  const auto model = model_of("R:compute=1,factor=1");
  constexpr double greatest = 5.699822;
  Random random(3);
  double most = 0;
  for (int i = 0; i < 100000; ++i) {
    const double multiple = model.delay(random) / (greatest / 999);
    ASSERT_NEAR(multiple, std::round(multiple), 2e-4);
    ASSERT_GE(multiple, .99);
    ASSERT_LE(multiple, 999.01);
    most = std::max(most, multiple);
  }
  EXPECT_GT(most, 600);  // one draw in 180 is larger
}

TEST(DelayModel, draws_of_each_law_have_its_mean_and_deviation) {
  constexpr size_t count = 100000;
  uint64_t seed = 100;
  for (const char* text :
       {"constant:base=1", "L:mu=1", "R:compute=1,factor=1", "G:mean=1,sd=0.25", "G:mean=1,sd=1.5", "exp:base=1,mean=0.3",
        "gamma:base=1,mean=0.3,sd=0.2", "gamma:base=1,mean=0.3,sd=0.5", "gamma:base=1,mean=0.3,sd=0.6",
        "bernoulli:base=1,mean=0.3,sd=0.2", "lognormal:base=1,mean=0.3,sd=0.2", "normal0:base=1,mean=0.3,sd=0.5",
        "normal0:base=1,mean=-0.3,sd=0.5", "gamma:base=1,mean=0.3,sd=0", "lognormal:base=1,mean=0.3", "bernoulli:base=1",
        "L:mu=1,cap=0.2", "L:mu=1,cap=1.5", "L:mu=2,cap=0"}) {
    SCOPED_TRACE(concat(text, ", seed ", ++seed));
    const auto model = model_of(text);
    const auto sample = latencies(model, count, seed);
    EXPECT_NEAR(sample.mean, model.latency_mean(), 5 * model.latency_deviation() / std::sqrt(count) + 1e-9);
    EXPECT_NEAR(std::sqrt(sample.variance), model.latency_deviation(), .03 * model.latency_deviation() + 1e-9);
    EXPECT_GE(*std::min_element(sample.values.begin(), sample.values.end()),
              model.law == DelayModel::Law::normal ? 0 : model.base);
  }
}

// Laws with equal mean and deviation may differ. So this test compares the fraction of draws above a value with its known
// probability.
TEST(DelayModel, draws_have_the_shape_of_their_law) {
  constexpr size_t count = 100000;
  const struct {
    const char* text;
    double above, share;
  } known[] = {
      {"exp:base=0,mean=2", 2, std::exp(-1)},
      {"gamma:base=0,mean=2,sd=2", 2, std::exp(-1)},                               // gamma law of shape 1, the exponential law
      {"gamma:base=0,mean=2,sd=2.8284271247461903", 2, std::erfc(std::sqrt(.5))},  // gamma law of shape 1/2, the law of 2 Z^2
      {"gamma:base=0,mean=2,sd=1.4142135623730951", 2, 3 * std::exp(-2)},          // gamma law of shape 2
      {"lognormal:base=0,mean=2,sd=2", std::sqrt(2), .5},  // above its median, mean / sqrt(1 + (sd/mean)^2)
      {"bernoulli:base=0,mean=2,sd=2", 3.999, .5},
      {"normal0:base=0,mean=1,sd=1", 0, std::erfc(-1 / std::sqrt(2)) / 2},
      {"G:mean=1,sd=0.25", 1.25, std::erfc(1 / std::sqrt(2)) / 2},
      {"L:mu=1", 1 + std::exp(-.5) / 2, .5},
      {"L:mu=1,cap=0.303265329", 1.303265, .5},  // the cap is the median of the delays
      {"L:mu=1,cap=0.303265329", 1.303266, 0},
  };
  for (const auto& each : known) {
    SCOPED_TRACE(std::string(each.text) + ", seed 17");
    EXPECT_NEAR(latencies(model_of(each.text), count, 17).share_above(each.above), each.share,
                5 * std::sqrt(each.share * (1 - each.share) / count));
  }
}

TEST(DelayModel, one_worker_may_be_slow) {
  const auto model = model_of("L:mu=1,slow=3x2.5");
  for (const uint32_t worker : {0u, 2u, 3u, 4u}) {
    auto usual = random_of(1, 2, 9, 4), same = usual;
    EXPECT_DOUBLE_EQ(model.latency(usual, worker), model_of("L:mu=1").latency(same, worker) * (worker == 3 ? 2.5 : 1));
  }
  EXPECT_EQ(model.latency_mean(), model_of("L:mu=1").latency_mean());
}

TEST(DelayModel, random_of_depends_only_on_seed_step_worker_and_micro_batch) {
  auto once = random_of(1, 2, 3, 4);
  for (int i = 0; i < 10; ++i) random_of(1, 2, 3, 5).next();
  auto again = random_of(1, 2, 3, 4);
  const auto first = once.next();
  EXPECT_EQ(again.next(), first);
  for (auto other : {random_of(0, 2, 3, 4), random_of(1, 3, 3, 4), random_of(1, 2, 4, 4), random_of(1, 2, 3, 5),
                     random_of(2, 1, 3, 4), random_of(1, 2, 4, 3)})
    EXPECT_NE(other.next(), first);
}

// Check 16 of docs/design/methods/drop_compute.md, by random draws.
TEST(LongDelayModel, draws_of_the_paper_have_the_moments_that_are_specified) {
  const auto model = model_of("L:mu=1");
  constexpr size_t count = 1000000;
  Random random(16);
  double sum = 0, squares = 0, capped = 0;
  for (size_t i = 0; i < count; ++i) {
    const double delay = model.delay(random);
    sum += delay;
    squares += delay * delay;
    capped += delay == 5.5;
  }
  const double mean = sum / count;
  EXPECT_NEAR(mean, .495904, .002);
  EXPECT_NEAR(squares / count - mean * mean, .365008, .006);
  EXPECT_NEAR(capped / count, .0018784, .0003);
}

}  // namespace
}  // namespace unisono::sim

#include "lab/averaging/averaging_plan.h"

#include <gtest/gtest.h>

#include "base/concat.h"

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

using enum sim::AveragingAlgorithm;
using Algorithms = std::vector<sim::AveragingAlgorithm>;

// Parses the words after `simulate averaging` as the command does.
AveragingOptions read_averaging(const std::vector<std::string>& words) {
  AveragingOptions options;
  const auto app = make_app(averaging_text);
  add_averaging_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return options;
}

AveragingPlan averaging_plan_of(const std::vector<std::string>& words) {
  auto plan = make_averaging_plan(read_averaging(words));
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return plan.ok() ? *std::move(plan) : AveragingPlan{};
}

void expect_averaging_refused(const std::vector<std::string>& words, const std::string& message) {
  const auto plan = make_averaging_plan(read_averaging(words));
  EXPECT_EQ(plan.status().code(), Code::invalid) << message;
  EXPECT_EQ(plan.status().message(), message);
}

TEST(AveragingPlan, the_default_plan_has_512_peers_and_all_algorithms_except_fitted_mid_round) {
  const auto plan = averaging_plan_of({});
  EXPECT_EQ(plan.peers, std::vector<uint32_t>{512});
  EXPECT_EQ(plan.absences, (std::vector<double>{0, .001, .005, .01}));
  EXPECT_EQ(plan.algorithms, (Algorithms{all_reduce, gossip, sgp, random_groups, published_grid, chunk_keys, fitted}));
  EXPECT_EQ(plan.targets, (std::vector<double>{1e-9, 1e-4}));
  EXPECT_EQ(plan.runs(), 10u * 4 * 7);
  EXPECT_EQ(plan.cases().size(), 28u);
  EXPECT_EQ(plan.cases()[8].algorithm, gossip);
  EXPECT_EQ(plan.cases()[8].absence, .001);
}

TEST(AveragingPlan, the_plan_follows_the_options) {
  const auto plan =
      averaging_plan_of({"--peers",    "40,600,40", "--absence", "0.02,0", "--algorithm", "fitted_mid_round,all-reduce",
                         "--restarts", "3",         "--target",  "1e-6",   "--max-group", "8",
                         "--plot",     "a",         "--output",  "b",      "--jobs",      "2",
                         "--progress", "off"});
  EXPECT_EQ(plan.peers, (std::vector<uint32_t>{40, 600}));
  EXPECT_EQ(plan.absences, (std::vector<double>{.02, 0}));
  EXPECT_EQ(plan.targets, std::vector<double>{1e-6});
  EXPECT_EQ(plan.restarts, 3u);
  EXPECT_EQ(plan.cases().front().max_group, 8u);
  EXPECT_EQ(plan.jobs, 2u);
  EXPECT_EQ(plan.plot + " " + plan.results.output + " " + plan.progress, "a b off");
}

TEST(AveragingPlan, random_groups_stand_beside_every_grid) {
  for (const char* grid : {"published", "chunk-keys", "fitted", "fitted-mid-round"})
    EXPECT_EQ(averaging_plan_of({"--algorithm", grid}).algorithms.front(), random_groups) << grid;
  EXPECT_EQ(averaging_plan_of({"--algorithm", "gossip"}).algorithms, Algorithms{gossip});
}

TEST(AveragingPlan, compare_has_the_authors_peers_and_the_given_ones_in_order) {
  EXPECT_EQ(averaging_plan_of({"--compare"}).peers, (std::vector<uint32_t>{512, 768, 900, 1024}));
  EXPECT_EQ(averaging_plan_of({"--compare", "--peers", "600,900"}).peers, (std::vector<uint32_t>{512, 600, 768, 900, 1024}));
  EXPECT_EQ(averaging_plan_of({"--compare"}).absences, (std::vector<double>{0, .001, .005, .01}));
  expect_averaging_refused({"--compare", "--absence", "0.1"},
                           "--absence cannot be set beside --compare, which takes the settings of the authors' table");
}

TEST(AveragingPlan, errors_name_the_wrong_option_and_its_valid_values) {
  expect_averaging_refused({"--peers", "2"}, "--peers '2': expected a whole number from 3 to 4096");
  expect_averaging_refused({"--peers", "512,"}, "--peers '': expected a whole number from 3 to 4096");
  expect_averaging_refused({"--restarts", "0"}, "--restarts '0': expected a whole number from 1 to 100000");
  expect_averaging_refused({"--max-group", "129"}, "--max-group '129': expected a whole number from 4 to 128");
  expect_averaging_refused({"--algorithm", "fited"},
                           "--algorithm 'fited' is none of all-reduce, gossip, sgp, random, published, chunk-keys, fitted, "
                           "fitted-mid-round; did you mean 'fitted'?");
  EXPECT_FALSE(make_averaging_plan(read_averaging({"--absence", "1.5"})).ok());
  EXPECT_FALSE(make_averaging_plan(read_averaging({"--absence", "nan"})).ok());
  EXPECT_FALSE(make_averaging_plan(read_averaging({"--target", "0"})).ok());
  EXPECT_FALSE(make_averaging_plan(read_averaging({"--progress", "loud"})).ok());
  std::string many = "3";
  for (int i = 4; i < 70; ++i) many += concat(",", i);
  expect_averaging_refused({"--peers", many}, "--peers: 67 values; at most 64");
}

TEST(AveragingPlan, full_grids_are_powers) {
  for (const uint32_t full : {32u, 1024u}) EXPECT_TRUE(is_full_grid(full, 32));
  for (const uint32_t other : {31u, 33u, 512u, 1023u, 1025u, 4096u}) EXPECT_FALSE(is_full_grid(other, 32)) << other;
  EXPECT_TRUE(is_full_grid(512, 8));
}

}  // namespace
}  // namespace unisono::lab

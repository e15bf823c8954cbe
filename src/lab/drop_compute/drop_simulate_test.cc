#include "lab/drop_compute/drop_simulate.h"

#include <gtest/gtest.h>

namespace unisono::lab {

using cli::make_app;
using cli::parse_arguments;

namespace {

Result<DropSimulation> read_simulation(const std::vector<std::string>& words) {
  DropSimulateOptions options;
  const auto app = make_app(drop_simulate_text);
  add_drop_simulate_options(*app, options);
  EXPECT_EQ(parse_arguments(*app, words), std::nullopt);
  return make_drop_simulation(options);
}

void expect_simulation_refused(const std::vector<std::string>& words, const std::string& message) {
  const auto simulation = read_simulation(words);
  EXPECT_EQ(simulation.status().code(), Code::invalid) << message;
  EXPECT_EQ(simulation.status().message(), message);
}

TEST(DropSimulate, the_default_is_the_documented_setting_of_16_workers) {
  const auto simulation = read_simulation({});
  ASSERT_TRUE(simulation.ok()) << simulation.status().message();
  EXPECT_EQ(simulation->settings.model.law, sim::DelayModel::Law::paper);
  EXPECT_EQ(simulation->settings.workers, 16u);
  EXPECT_EQ(simulation->settings.micro_batches, 12u);
  EXPECT_EQ(simulation->settings.other, .5);
  EXPECT_EQ(simulation->measured_steps(), 2000u);
  EXPECT_EQ(simulation->measured_from, 50u) << "after warming up and recording";
  EXPECT_EQ(simulation->rules.size(), 3u);
  EXPECT_TRUE(simulation->drops && !simulation->fixed);
}

TEST(DropSimulate, the_plan_follows_the_options) {
  const auto simulation = read_simulation({"--model",    "G:mean=1,sd=0.25",
                                           "--slow",     "3x1.5",
                                           "-n",         "8",
                                           "-m",         "4",
                                           "--comm",     "10ms",
                                           "--rule",     "at",
                                           "--tau",      "16s",
                                           "--steps",    "10",
                                           "--seed",     "7",
                                           "--max-drop", "0.2",
                                           "--jobs",     "2"});
  ASSERT_TRUE(simulation.ok()) << simulation.status().message();
  EXPECT_EQ(simulation->settings.model.law, sim::DelayModel::Law::normal);
  EXPECT_EQ(simulation->settings.model.slow_worker, 3);
  EXPECT_EQ(simulation->settings.model.slow_factor, 1.5);
  EXPECT_EQ(simulation->settings.other, .01);
  EXPECT_EQ(simulation->settings.seed, 7u);
  EXPECT_EQ(simulation->fixed, 16);
  EXPECT_EQ(simulation->choice.max_drop, .2);
  EXPECT_EQ(simulation->jobs, 2u);
  EXPECT_FALSE(read_simulation({"--tau", "off"})->drops);
}

TEST(DropSimulate, refuses_impossible_values) {
  EXPECT_TRUE(read_simulation({"--model", "Q:mu=1"}).status().message().starts_with("--model Q:mu=1: "))
      << read_simulation({"--model", "Q:mu=1"}).status().message();
  for (const char* wrong : {"3", "x2", "3x", "3x0", "3x-1", "3x2s"})
    expect_simulation_refused({"--slow", wrong},
                              "--slow '" + std::string(wrong) + "': expected a rank and a factor, as in 3x2");
  expect_simulation_refused({"-n", "8", "--slow", "8x2"}, "--slow: worker 8 cannot be slow: there are 8, from 0");
  expect_simulation_refused({"--workers", "8193"}, "--workers '8193': expected a whole number from 1 to 8192");
  expect_simulation_refused({"--workers", "8192", "--micro-batches", "64"},
                            "--workers 8192 --micro-batches 64: 44 recorded steps have more than 20000000 times");
  expect_simulation_refused({"--steps", "0"}, "--steps '0': expected a whole number from 1 to 1000000");
  expect_simulation_refused({"--tau", "soon"}, "--tau 'soon' is not a time such as 5s or 200ms; or auto, off");
  expect_simulation_refused({"--seed", "-1"}, "--seed '-1' is not a whole number");
  expect_simulation_refused({"--jobs", "0"}, "--jobs '0': expected a whole number from 1 to 256");
  expect_simulation_refused({"--progress", "loud"}, "--progress 'loud' is none of auto, bar, lines, off");
}

TEST(DropSimulate, a_trace_is_read_as_it_was_written) {
  const auto simulation = read_simulation({"-n", "3", "-m", "2"});
  ASSERT_TRUE(simulation.ok());
  const auto trace = simulation->recorded();
  EXPECT_EQ(trace.steps(), 44u);
  const auto text = trace_text(trace, 6);
  EXPECT_TRUE(text.starts_with("step,rank,wall_ns,end_1_ns,end_2_ns\n6,0,"));
  const auto read_again = ComputeTrace::parse(text);
  ASSERT_TRUE(read_again.ok()) << read_again.status().message();
  EXPECT_EQ(read_again->hash(), trace.hash());
}

}  // namespace
}  // namespace unisono::lab

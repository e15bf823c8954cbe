// The options of `unisono tune`, and the plan that is made from them. Every rank parses the same options, and so carries out
// the same plan.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "cli/bench/bench_plan.h"
#include "cli/common/command_line.h"
#include "cli/launch/launch.h"
#include "cli/launch/thin_links.h"
#include "cli/tune/tune_plan.h"

namespace unisono::cli {

extern const CommandLineText tune_text;

// The options as the user typed them. make_tune_plan() parses them.
struct TuneOptions {
  std::vector<std::string> collectives;
  SizeRange sizes{.end = "16M"};
  std::string streams = "1,2,4";
  std::string gain = "5";  // percent
  std::string rounds = "5";
  std::string round_time = "20ms";
  std::string output = "unisono.tuning";
  std::string progress = "auto";
  LaunchOptions launch;
};

void add_tune_options(CLI::App& app, TuneOptions& options);

struct TunePlan {
  std::vector<Collective> collectives;
  std::vector<uint64_t> sizes;    // sorted, ascending
  std::vector<uint32_t> streams;  // the numbers of streams that are compared; empty: none
  double gain = 0.05;
  uint32_t rounds = 5;
  Nanos round_time = 20 * millisecond;
  Options group;
  LinkLimits limits;
};

// If the result is Code::invalid, the message names the option that is wrong, and the values that it can have.
Result<TunePlan> make_tune_plan(const TuneOptions& options);

// Returns the collective with this name. Returns nullopt if `unisono tune` does not tune it.
std::optional<unisono::Collective> parse_tuned(std::string_view name);

}  // namespace unisono::cli

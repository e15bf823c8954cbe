// The options of `unisono tune`, from words to a plan that every rank works through alike.
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

// As typed; parsed by make_tune_plan.
struct TuneOptions {
  std::vector<std::string> collectives;
  SizeRange sizes{.end = "16M"};
  std::string streams = "1,2,4";
  std::string gain = "5";  // per cent
  std::string rounds = "5";
  std::string round_time = "20ms";
  std::string output = "unisono.tuning";
  std::string progress = "auto";
  LaunchOptions launch;
};

void add_tune_options(CLI::App& app, TuneOptions& options);

struct TunePlan {
  std::vector<Collective> collectives;
  std::vector<uint64_t> sizes;    // ascending
  std::vector<uint32_t> streams;  // none: not tried
  double gain = 0.05;
  uint32_t rounds = 5;
  Nanos round_time = 20 * millisecond;
  Options group;
  LinkLimits limits;
};

// invalid: which option is wrong and what it takes.
Result<TunePlan> make_tune_plan(const TuneOptions& options);

// The collective as the library names it; nothing if it is not tuned.
std::optional<unisono::Collective> parse_tuned(std::string_view name);

}  // namespace unisono::cli

// The options of `unisono bench`, from words to a plan that every rank works through alike.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "cli/bench/bench_run.h"
#include "cli/common/command_line.h"
#include "cli/launch/injected_faults.h"
#include "cli/launch/launch.h"
#include "cli/launch/thin_links.h"

namespace unisono::cli {

extern const CommandLineText bench_text;

// As typed; parsed by make_bench_plan.
struct BenchOptions {
  std::vector<std::string> collectives;
  std::string collective;  // --collective
  SizeRange sizes;
  std::string dtype = "f32";
  std::string op = "sum";
  std::string order = "auto";
  std::string schedule = "auto";
  std::string codec = "plain";
  std::string delivery = "reliable";
  std::string timeout = "60s";
  std::string row_time = "500ms";
  std::string json;
  std::string plot;
  std::string progress = "auto";
  std::string slice;
  uint32_t root = 0;
  uint32_t iterations = 0;
  uint32_t warmup = 2;
  uint32_t streams = 0;
  uint32_t checks = 1;
  int across = 1;
  int blocking = 1;  // -z: 0 is --no-barrier
  bool only_in_place = false;
  std::vector<std::string> kill, stop, resume;
  bool no_reform = false;
  std::vector<std::string> compare;  // none, or two files
  double fail_above = 0;
  LaunchOptions launch;
};

void add_bench_options(CLI::App& app, BenchOptions& options);

struct BenchPlan {
  std::vector<Collective> collectives;
  std::vector<uint64_t> sizes;
  RunOptions run;
  Options group;
  LinkLimits limits;
  std::vector<Fault> faults;  // as typed; arrange_faults needs the number of ranks
};

// invalid: which option is wrong and what it takes.
Result<BenchPlan> make_bench_plan(const BenchOptions& options);

}  // namespace unisono::cli

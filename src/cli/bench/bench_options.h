// The options of `unisono bench`, and the plan that is made from them. Every rank parses the same options, and so carries out
// the same plan.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "cli/bench/bench_run.h"
#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "cli/launch/injected_faults.h"
#include "cli/launch/launch.h"
#include "cli/launch/thin_links.h"

namespace unisono::cli {

extern const CommandLineText bench_text;

// The options as the user typed them. make_bench_plan() parses them.
struct BenchOptions {
  std::vector<std::string> collectives;
  std::string collective;  // the value of --collective; the positional arguments are in `collectives`
  SizeRange sizes;
  std::string dtype = "f32";
  std::string op = "sum";
  std::string order = "auto";
  std::string schedule = "auto";
  std::string codec = "plain";
  std::string delivery = "reliable";
  std::string timeout = "60s";
  std::string row_time = "500ms";
  OutputOptions results;
  std::string plot;
  std::string progress = "auto";
  std::string slice;
  uint32_t root = 0;
  uint32_t iterations = 0;
  uint32_t warmup = 2;
  uint32_t streams = 0;
  uint32_t checks = 1;
  int across = 1;
  int blocking = 1;  // the value of -z; 0 has the same effect as --no-barrier
  bool only_in_place = false;
  std::vector<std::string> kill, stop, resume;
  bool no_reform = false;
  std::vector<std::string> compare;  // the list holds either no files or two
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
  // These are in the order in which the user gave them. arrange_faults() sorts them once the number of ranks is known.
  std::vector<Fault> faults;
};

// If the result is Code::invalid, the message names the option that is wrong, and the values that it can have.
Result<BenchPlan> make_bench_plan(const BenchOptions& options);

}  // namespace unisono::cli

// Turns the options of `unisono-lab simulate elastic` into settings. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/common/command_line.h"
#include "lab/elastic/elastic_study.h"
#include "sim/settings_text.h"

namespace unisono::cli {

extern const CommandLineText elastic_text;

// As typed; parsed by make_elastic_plan. Empty: as --help says.
struct ElasticWords {
  std::string peers = {}, steps = {};
  std::string absence = "0", away = "3s", trace = {}, churn = {};
  std::string max_group = "32", rounds = "0", grid = "fitted", times = "lan", min_peers = {}, max_peers = "4096";
  std::string elements = "1024", compute = "100ms", compute_jitter = "0";
  std::string delay = "100us", jitter = "0", rate = {};
  std::string limit = "1h", seeds = "0";
  std::string plot = {}, json = {};
  std::string jobs = "1", progress = "auto";
};

void add_elastic_options(CLI::App& app, ElasticWords& words);

struct ElasticPlan {
  sim::ElasticStudyOptions study;       // what all seeds have alike
  std::optional<sim::ChurnPlan> churn;  // each seed has its own trace by it
  bool whole_trace = false;             // a run ends with its trace, not with a number of averaging steps
  sim::SeedRange seeds;
  uint32_t jobs = 1;
  std::string grid, times;  // as they were named
  std::string again;        // the command, but for its seeds and for what it writes
  std::string plot, json, progress;

  uint64_t runs() const { return seeds.last - seeds.first + 1; }
  sim::ElasticStudyOptions study_of(uint64_t seed) const;
};
// trace: what stands in the file that words.trace names, if it does. invalid: which option, or which line of the trace, is
// wrong and what it takes.
Result<ElasticPlan> make_elastic_plan(const ElasticWords& words, std::string_view trace = {});

}  // namespace unisono::cli

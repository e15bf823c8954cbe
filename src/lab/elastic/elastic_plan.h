// Turns the options of `unisono-lab simulate elastic` into settings. Performs no I/O.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "lab/elastic/elastic_study.h"
#include "sim/settings_text.h"

namespace unisono::lab {

extern const cli::CommandLineText elastic_text;

// Option values as the user typed them; make_elastic_plan() parses them. An empty value means the default that --help names.
struct ElasticOptionTexts {
  std::string peers = {}, steps = {};
  std::string absence = "0", away = "3s", trace = {}, churn = {};
  std::string max_group = "32", rounds = "0", grid = "fitted", times = "lan", min_peers = {}, max_peers = "4096";
  std::string elements = "1024", compute = "100ms", compute_jitter = "0";
  std::string delay = "100us", jitter = "0", rate = {};
  std::string limit = "1h", seeds = "0";
  std::string plot = {};
  cli::OutputOptions results = {};
  std::string jobs = "1", progress = "auto";
};

void add_elastic_options(CLI::App& app, ElasticOptionTexts& words);

struct ElasticPlan {
  sim::ElasticStudyOptions study;       // the settings that are the same for all seeds
  std::optional<sim::ChurnPlan> churn;  // if set, a random trace is drawn by this plan for each seed
  bool whole_trace = false;  // true: a run ends when its trace ends. false: it ends after study.steps averaging steps
  sim::SeedRange seeds;
  uint32_t jobs = 1;
  std::string grid, times;     // option values as the user typed them
  std::string repeat_command;  // the command that repeats a run; it contains neither seeds nor output files
  std::string plot, progress;
  cli::OutputOptions results = {};

  uint64_t runs() const { return seeds.last - seeds.first + 1; }
  sim::ElasticStudyOptions study_of(uint64_t seed) const;
};
// trace: the contents of the file `words.trace`, if that option is set. Fails with Code::invalid if an option value or a line
// of the trace is not allowed. The message says what is allowed.
Result<ElasticPlan> make_elastic_plan(const ElasticOptionTexts& words, std::string_view trace = {});

}  // namespace unisono::lab

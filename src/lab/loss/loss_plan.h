// Turns the options of `unisono-lab simulate loss` into settings. Performs no I/O.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "cli/common/result_writer.h"
#include "lab/loss/loss_run.h"
#include "lab/loss/udp_run.h"

namespace unisono::lab {

extern const cli::CommandLineText loss_text;

// Option values as the user typed them; make_loss_plan() parses them. If a value is empty, its default may depend on the number
// of peers or steps.
struct LossOptions {
  std::string problem = "all";
  std::string peers = "8", loss = "0.1", steps, seeds = "1", burn_in, ranges, elements;
  std::string estimator = "stratified", on_empty = "hold", stale_max = "0", rho = "0", travel = "values", missed = "stale";
  std::string network, lossy, bytes;  // only for the problem `network`
  std::string plot;
  cli::OutputOptions results = {};
  std::string jobs = "1", progress = "auto";
};

void add_loss_options(CLI::App& app, LossOptions& options);

struct LossPlan {
  sim::LossSettings settings;  // settings.ranks.seed is the first of the seeds
  std::vector<uint64_t> seeds;
  bool estimates = true, drift = true, fixed_point = true;
  std::optional<sim::UdpRunSettings> network = {};  // if set, only the problem `network` is run
  uint32_t jobs = 1;
  std::string plot, progress;
  cli::OutputOptions results = {};

  uint64_t steps() const;  // returns the number of steps of all runs together
  // True if the formulae apply: ranks send values, and if a range does not arrive, the copy keeps its old values.
  bool is_as_specified() const {
    return settings.ranks.travel == sim::Travel::values && settings.ranks.missed == sim::Missed::stale;
  }
};
// Fails with Code::invalid if an option has a value that is not allowed. The message names the option and the allowed values.
Result<LossPlan> make_loss_plan(const LossOptions& options);

std::string_view name(OnEmpty on_empty);

}  // namespace unisono::lab

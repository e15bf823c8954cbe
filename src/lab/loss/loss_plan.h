// Turns the options of `unisono-lab simulate loss` into settings. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/command_line.h"
#include "lab/loss/loss_run.h"
#include "lab/loss/udp_run.h"

namespace unisono::cli {

extern const CommandLineText loss_text;

// As typed; parsed by make_loss_plan. Empty: by the number of peers, or of steps.
struct LossOptions {
  std::string problem = "all";
  std::string peers = "8", loss = "0.1", steps, seeds = "1", burn_in, ranges, elements;
  std::string estimator = "stratified", on_empty = "hold", stale_max = "0", rho = "0", travel = "values", missed = "stale";
  std::string network, lossy, bytes;  // of the problem `network`
  std::string plot, json;
  std::string jobs = "1", progress = "auto";
};

void add_loss_options(CLI::App& app, LossOptions& options);

struct LossPlan {
  sim::LossSettings settings;  // with the first seed
  std::vector<uint64_t> seeds;
  bool estimates = true, drift = true, fixed_point = true;
  std::optional<sim::UdpRunSettings> network = {};  // then it alone is run, with these
  uint32_t jobs = 1;
  std::string plot, json, progress;

  uint64_t steps() const;  // of all runs
  // Nothing that the formulae are not about: values travel, and what is missed stays.
  bool is_as_specified() const {
    return settings.ranks.travel == sim::Travel::values && settings.ranks.missed == sim::Missed::stale;
  }
};
// invalid: which option is wrong and what it takes.
Result<LossPlan> make_loss_plan(const LossOptions& options);

std::string_view name(OnEmpty on_empty);

}  // namespace unisono::cli

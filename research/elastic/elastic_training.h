// The training loop of one peer of an elastic run. The peer makes local steps, and averages its parameters with other peers
// between them. The loop calls Unisono only through an interface, so tests need no network.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "research/elastic/event_log.h"
#include "research/elastic/local_trainer.h"
#include "unisono/moshpit_sgd.h"
#include "unisono/status.h"

namespace language_model {

class AveragingSteps {
 public:
  virtual ~AveragingSteps() = default;
  // These are the functions of MoshpitSgd that the loop uses.
  virtual unisono::Result<unisono::MoshpitStep> after_step(std::span<float> parameters, uint64_t samples) = 0;
  virtual unisono::Result<unisono::MoshpitStep> finish(std::span<float> parameters) = 0;
  virtual uint64_t steps() const = 0;
  virtual unisono::MoshpitSgdReport report() const = 0;
};

struct ElasticLoopOptions {
  uint64_t steps = 0;  // The loop ends when the run has made this many steps. 0: no limit.
  double seconds = 0;  // The loop ends this many seconds after the process started. 0: no limit.
  size_t batch = 16;
  size_t validate_every = 0;  // number of local steps between validations; 0: validate only at the end
  size_t validation_sequences = 64, final_validation_sequences = 256;
  // Seconds between progress events; 0: write no progress events. If the process is killed, its last event shows how far it
  // came.
  double progress_every_s = 0;
  std::function<double()> clock;  // returns seconds since the process started
  std::function<bool()> stop_requested;
};

struct ElasticOutcome {
  // Says why the loop ended. "steps" or "seconds": it reached this limit. "told": it was told to stop. "refused: …": an
  // averaging step failed.
  std::string why;
  TrainingTally tally;
  // The held-out loss, computed after the final averaging step. It is nullopt unless the loop reached its limit of steps or
  // seconds.
  std::optional<float> held_out;
};

// This function is called after each local step. `averaging` points to the report of the last averaging step. It is null until
// there has been one.
using OnElasticStep = std::function<void(const TrainingTally& tally, const unisono::AveragingReport* averaging)>;

ElasticOutcome train_elastic(LocalTrainer& trainer, AveragingSteps& averaging_steps, const ElasticLoopOptions& options,
                             EventLog& log, const OnElasticStep& on_step);

}  // namespace language_model

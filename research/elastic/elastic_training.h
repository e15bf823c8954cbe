// The training loop of one peer of an elastic run: its own steps, and averaging steps in between. All calls of Unisono are
// behind an interface, so that tests need no network.
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
  // The same calls as those of MoshpitSgd.
  virtual unisono::Result<unisono::MoshpitStep> after_step(std::span<float> parameters, uint64_t samples) = 0;
  virtual unisono::Result<unisono::MoshpitStep> finish(std::span<float> parameters) = 0;
  virtual uint64_t steps() const = 0;
  virtual unisono::MoshpitSgdReport report() const = 0;
};

struct ElasticLoopOptions {
  uint64_t steps = 0;  // of the run; 0: no end
  double seconds = 0;  // since the process began; 0: no end
  size_t batch = 16;
  size_t validate_every = 0;  // own steps; 0: at the end only
  size_t validation_sequences = 64, final_validation_sequences = 256;
  double progress_every_s = 0;    // between progress events, for processes that may be killed; 0: none
  std::function<double()> clock;  // seconds since the process began
  std::function<bool()> told_to_go;
};

struct ElasticOutcome {
  std::string why;  // "steps", "seconds", "told", or "refused: …": an averaging step failed
  TrainingTally tally;
  std::optional<float>
      held_out;  // of the parameters that all peers which end together have; none if the process was told to stop
};

// Called after each step. averaging: the last averaging step; null before the first one.
using OnElasticStep = std::function<void(const TrainingTally& tally, const unisono::AveragingReport* averaging)>;

ElasticOutcome train_elastic(LocalTrainer& trainer, AveragingSteps& averaging_steps, const ElasticLoopOptions& options,
                             EventLog& log, const OnElasticStep& on_step);

}  // namespace language_model

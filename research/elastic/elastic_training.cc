#include "research/elastic/elastic_training.h"

#include <algorithm>
#include <memory>

#include "research/model/trainer.h"

namespace language_model {
namespace {

// Returns an exponential average of the loss. The loss itself varies much from step to step, because batches are small.
double smooth(double before, float loss, uint64_t steps) {
  return steps <= 1 ? static_cast<double>(loss)
                    : before + (static_cast<double>(loss) - before) * std::max(0.05, 1.0 / static_cast<double>(steps));
}

class Loop {
 public:
  Loop(LocalTrainer& trainer, AveragingSteps& averaging_steps, const ElasticLoopOptions& options, EventLog& log)
      : trainer_(trainer), averaging_steps_(averaging_steps), options_(options), log_(log) {}

  ElasticOutcome run(const OnElasticStep& on_step) {
    std::string why;
    while ((why = ending()).empty()) {
      compute();
      auto step = averaging_steps_.after_step(trainer_.parameters(), options_.batch);
      if (!step.ok()) {
        why = "refused: " + step.status().to_string();
        break;
      }
      note(*step);
      if (options_.progress_every_s > 0 && tally_.life_s >= last_progress_s_ + options_.progress_every_s)
        last_progress_s_ = tally_.life_s, log_.progress(tally_);
      on_step(tally_, averaging_.get());
      if (options_.validate_every > 0 && tally_.steps % options_.validate_every == 0) validate(options_.validation_sequences);
    }
    ElasticOutcome outcome{.why = why, .tally = {}, .held_out = {}};
    // If the process was told to stop, it skips the last averaging step, because it would have to wait for peers there.
    if (why == "steps" || why == "seconds") {
      if (auto last = averaging_steps_.finish(trainer_.parameters()); last.ok()) note(*last);
      else outcome.why = "refused: " + last.status().to_string();
      outcome.held_out = validate(options_.final_validation_sequences);
    }
    outcome.tally = tally();
    log_.ended(outcome.why, hash_of(trainer_.parameters()), outcome.tally);
    return outcome;
  }

 private:
  std::string ending() const {
    if (options_.stop_requested()) return "told";
    if (options_.steps > 0 && averaging_steps_.steps() >= options_.steps) return "steps";
    return options_.seconds > 0 && options_.clock() >= options_.seconds ? "seconds" : "";
  }
  void compute() {
    const double begun = options_.clock();
    const float loss = trainer_.compute(tally_.steps);
    trainer_.apply(averaging_steps_.steps());
    tally_.useful_s += options_.clock() - begun;
    ++tally_.steps;
    tally_.samples += options_.batch;
    tally_.loss = smooth(tally_.loss, loss, tally_.steps);
  }
  const TrainingTally& tally() {
    tally_.run_steps = averaging_steps_.steps();
    tally_.life_s = options_.clock() - validation_s_;
    return tally_;
  }
  void note(const unisono::MoshpitStep& step) {
    tally();
    if (step.averaging == nullptr) return;
    averaging_ = step.averaging;
    log_.averaging(*averaging_, averaging_steps_.report(), tally_);
  }
  float validate(size_t sequences) {
    const double begun = options_.clock();
    const float loss = trainer_.held_out_loss(sequences);
    validation_s_ += options_.clock() - begun;
    log_.held_out(static_cast<double>(loss), tally());
    return loss;
  }

  LocalTrainer& trainer_;
  AveragingSteps& averaging_steps_;
  const ElasticLoopOptions& options_;
  EventLog& log_;
  TrainingTally tally_;
  double validation_s_ = 0;     // seconds that this process spent on computing held-out losses
  double last_progress_s_ = 0;  // the value of tally_.life_s at the last progress event
  std::shared_ptr<const unisono::AveragingReport> averaging_;
};

}  // namespace

ElasticOutcome train_elastic(LocalTrainer& trainer, AveragingSteps& averaging_steps, const ElasticLoopOptions& options,
                             EventLog& log, const OnElasticStep& on_step) {
  return Loop(trainer, averaging_steps, options, log).run(on_step);
}

}  // namespace language_model

#include "research/elastic/restartable_training.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "research/model/results.h"
#include "research/model/trainer.h"

namespace language_model {

using unisono::Code;
using unisono::Result;
using unisono::Status;

namespace {

class Job {
 public:
  Job(LocalTrainer& trainer, GradientExchange& exchange, const RestartableOptions& options, EventLog& log, uint64_t steps)
      : trainer_(trainer), exchange_(exchange), options_(options), log_(log) {
    tally_.run_steps = steps;
  }

  Result<ElasticOutcome> run(const OnElasticStep& on_step) {
    std::string why;
    while ((why = ending()).empty()) {
      if (auto stepped = step(); !stepped.ok()) {
        why = "refused: " + stepped.to_string();
        break;
      }
      on_step(tally_, nullptr);
      if (options_.loop.progress_every_s > 0 && tally().life_s >= last_progress_s_ + options_.loop.progress_every_s)
        last_progress_s_ = tally_.life_s, log_.progress(tally_);
      if (exchange_.rank() == 0 && tally_.run_steps % options_.checkpoint_every == 0) {
        if (auto written = write_checkpoint(options_.checkpoint, tally_.run_steps, trainer_); !written.ok()) return written;
        log_.progress(tally());
        last_progress_s_ = tally_.life_s;
      }
    }
    // If the job was told to stop, rank 0 writes a checkpoint, so no step is lost. It does so even if the loop ended because a
    // link was lost meanwhile. The parameters are those of the last complete step then, because a failed step changes nothing.
    if (exchange_.rank() == 0 && options_.loop.stop_requested()) {
      if (auto written = write_checkpoint(options_.checkpoint, tally_.run_steps, trainer_); !written.ok()) return written;
    }
    ElasticOutcome outcome{.why = why, .tally = {}, .held_out = {}};
    if (why == "steps" || why == "seconds") {
      const double begun = options_.loop.clock();
      outcome.held_out = trainer_.held_out_loss(options_.loop.final_validation_sequences);
      validation_s_ += options_.loop.clock() - begun;
      log_.held_out(static_cast<double>(*outcome.held_out), tally());
    }
    outcome.tally = tally();
    log_.ended(why, hash_of(trainer_.parameters()), outcome.tally);
    return outcome;
  }

 private:
  // Returns why the job ends. Returns an empty text while the job goes on. If the job has a time limit, the clock of rank 0
  // decides. Rank 0 sends its decision together with the gradients, so all ranks end after the same step.
  std::string ending() const {
    if (options_.loop.stop_requested()) return "told";
    if (options_.loop.steps > 0 && tally_.run_steps >= options_.loop.steps) return "steps";
    return time_is_up_ ? "seconds" : "";
  }
  Status step() {
    const double begun = options_.loop.clock();
    trainer_.compute(tally_.run_steps);
    const double computed = options_.loop.clock();
    exchange_.begin(trainer_.gradients());
    exchange_.ready(0);
    if (auto done = exchange_.finish(); !done.ok()) return done;
    const double exchanged = options_.loop.clock();
    trainer_.apply(tally_.run_steps);
    tally_.useful_s += options_.loop.clock() - exchanged + computed - begun;
    ++tally_.steps, ++tally_.run_steps;
    tally_.samples += options_.loop.batch;
    const double loss = static_cast<double>(loss_of(trainer_.gradients()));
    tally_.loss = tally_.steps == 1 ? loss : tally_.loss + 0.05 * (loss - tally_.loss);
    if (options_.loop.seconds == 0) return {};
    float up[] = {exchange_.rank() == 0 && options_.loop.clock() >= options_.loop.seconds ? 1.0f : 0.0f};
    auto status = exchange_.broadcast(up);
    time_is_up_ = up[0] > 0;
    return status;
  }
  const TrainingTally& tally() {
    tally_.life_s = options_.loop.clock() - validation_s_;
    return tally_;
  }

  LocalTrainer& trainer_;
  GradientExchange& exchange_;
  const RestartableOptions& options_;
  EventLog& log_;
  TrainingTally tally_;
  bool time_is_up_ = false;
  double validation_s_ = 0, last_progress_s_ = 0;
};

}  // namespace

Status write_checkpoint(const std::string& path, uint64_t steps, LocalTrainer& trainer) {
  const auto parameters = trainer.parameters();
  const auto optimizer = trainer.save_optimizer();
  const uint64_t head[] = {steps, parameters.size()};
  std::string bytes(sizeof head + parameters.size_bytes() + optimizer.size(), '\0');
  std::memcpy(bytes.data(), head, sizeof head);
  std::memcpy(bytes.data() + sizeof head, parameters.data(), parameters.size_bytes());
  std::memcpy(bytes.data() + sizeof head + parameters.size_bytes(), optimizer.data(), optimizer.size());
  // The new file replaces the old one atomically. If the process is killed meanwhile, the previous checkpoint stays.
  const auto beside = path + ".new";
  if (auto written = write_file(beside, bytes); !written.ok()) return written;
  std::error_code error;
  std::filesystem::rename(beside, path, error);
  return error ? Status(Code::unavailable, "cannot write " + path + ": " + error.message()) : Status();
}

Result<uint64_t> read_checkpoint(const std::string& path, LocalTrainer& trainer) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return uint64_t{0};
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const auto parameters = trainer.parameters();
  uint64_t head[2] = {};
  const size_t before = sizeof head + parameters.size_bytes();
  if (bytes.size() >= before) std::memcpy(head, bytes.data(), sizeof head);
  if (bytes.size() < before || head[1] != parameters.size())
    return Status(Code::invalid, path + " is not a checkpoint of this model");
  if (auto loaded = trainer.load_optimizer(std::as_bytes(std::span(bytes).subspan(before))); !loaded.ok())
    return Status(loaded.code(), path + ": " + loaded.message());
  std::memcpy(parameters.data(), bytes.data() + sizeof head, parameters.size_bytes());
  return head[0];
}

Result<ElasticOutcome> train_restartable(LocalTrainer& trainer, GradientExchange& exchange, const RestartableOptions& options,
                                         EventLog& log, const OnElasticStep& on_step) {
  const auto steps = read_checkpoint(options.checkpoint, trainer);
  if (!steps.ok()) return steps.status();
  return Job(trainer, exchange, options, log, *steps).run(on_step);
}

}  // namespace language_model

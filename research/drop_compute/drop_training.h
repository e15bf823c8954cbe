// Steps of a training with DropCompute (unisono/drop_compute.h): a rank that is late leaves out its last micro-batches.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "research/model/data_parallel.h"
#include "research/model/micro_batches.h"
#include "unisono/drop_compute.h"

namespace language_model {

// What this rank did in a step.
struct DropRecord {
  uint64_t step = 0;  // from 1
  uint32_t computed = 0, planned = 0;
  int64_t compute_ns = 0, wall_ns = 0;  // until it stopped; of the whole step, without validation: the trainer's to say
  friend bool operator==(const DropRecord&, const DropRecord&) = default;
};

class DropTraining {
 public:
  // What it works with and does not own.
  struct Borrowed {
    GradientExchange& exchange;
    MicroBatches& micro_batches;
    std::span<const float> parameters;
    // Takes averages of all gradients, and of what lies behind them, for the optimizer's step.
    std::function<void(std::span<const float> averages)> use;
  };
  // All ranks call it. Errors: those of DropCompute::make.
  static unisono::Result<std::unique_ptr<DropTraining>> make(const unisono::DropOptions& options, const Borrowed& borrowed);

  // gradients: of all parameters, and loss_elements behind them. With the rule at, the averages of a step may be used in a
  // later one.
  unisono::Status step(std::span<float> gradients);
  // Afterwards all averages are used, and nothing is computed in the background. What comes until the next step is not part of
  // one. last: of the run; its report is complete then.
  unisono::Status settle(bool last);

  // Of the last step: mean over all micro-batches that ranks have computed. If there was none, the one before.
  float loss() const { return loss_; }
  const DropRecord& last() const { return last_; }
  std::span<const std::string> warnings() const { return warnings_; }  // of all steps
  double dropped() const {
    return planned_ == 0 ? 0 : static_cast<double>(planned_ - computed_) / static_cast<double>(planned_);
  }  // share, by this rank
  const unisono::DropCompute& compute() const { return drop_; }

 private:
  DropTraining(unisono::DropCompute drop, bool leaves_midway, const Borrowed& borrowed)
      : drop_(std::move(drop)), leaves_midway_(leaves_midway), borrowed_(borrowed) {}
  unisono::Status step_in_order(std::span<float> gradients);
  unisono::Status step_midway(std::span<float> gradients);
  unisono::DropWork work(uint64_t step);
  void note(const unisono::DropStep& step);
  void note_loss(std::span<const float> averages);

  unisono::DropCompute drop_;
  const bool leaves_midway_;  // rule at
  const Borrowed borrowed_;
  float loss_ = std::numeric_limits<float>::quiet_NaN();
  uint64_t planned_ = 0, computed_ = 0;
  uint64_t steps_ = 0;
  DropRecord last_;
  std::vector<bool> finite_;  // of steps: the exchange says that their averages may be used
  std::vector<std::string> warnings_;
};

}  // namespace language_model

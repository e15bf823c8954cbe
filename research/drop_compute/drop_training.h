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

// This rank's part in a step.
struct DropRecord {
  uint64_t step = 0;  // from 1
  uint32_t computed = 0, planned = 0;
  int64_t compute_ns = 0,
          wall_ns = 0;  // time until it stopped computing; time of the whole step without validation, which the trainer sets
  friend bool operator==(const DropRecord&, const DropRecord&) = default;
};

class DropTraining {
 public:
  // Objects that it uses and does not own.
  struct Borrowed {
    GradientExchange& exchange;
    MicroBatches& micro_batches;
    std::span<const float> parameters;
    // Makes the optimizer's step with the averages of all gradients and of the loss elements behind them.
    std::function<void(std::span<const float> averages)> use;
  };
  // All ranks call it. Errors: those of DropCompute::make.
  static unisono::Result<std::unique_ptr<DropTraining>> make(const unisono::DropOptions& options, const Borrowed& borrowed);

  // gradients: those of all parameters, and loss_elements behind them. With the rule `at` a later step may use the averages of
  // this one.
  unisono::Status step(std::span<float> gradients);
  // Afterwards all averages have been used, and nothing is computed in the background. Time until the next step counts for no
  // step. last: the run ends here, and its report is complete.
  unisono::Status settle(bool last);

  // The loss of the last step: the mean over all micro-batches that ranks have computed. If there was none, the loss of the
  // step before.
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
  std::vector<bool> finite_;  // per step: whether the exchange says that its averages may be used
  std::vector<std::string> warnings_;
};

}  // namespace language_model

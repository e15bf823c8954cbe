// Training steps with DropCompute (unisono/drop_compute.h): if a rank is late, it skips its last micro-batches.
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

// Says what this rank did in one step.
struct DropRecord {
  uint64_t step = 0;  // number of the step; the first step is 1
  uint32_t computed = 0, planned = 0;
  // compute_ns: the time until this rank stopped computing. wall_ns: the time of the whole step, without validation. The
  // trainer sets wall_ns.
  int64_t compute_ns = 0, wall_ns = 0;
  friend bool operator==(const DropRecord&, const DropRecord&) = default;
};

class DropTraining {
 public:
  // The objects that a DropTraining uses. It does not own them.
  struct Borrowed {
    GradientExchange& exchange;
    MicroBatches& micro_batches;
    std::span<const float> parameters;
    // Updates the parameters. `averages` has the averaged gradients, followed by the averaged loss elements.
    std::function<void(std::span<const float> averages)> use;
  };
  // All ranks must call this function. It returns the errors of DropCompute::make.
  static unisono::Result<std::unique_ptr<DropTraining>> make(const unisono::DropOptions& options, const Borrowed& borrowed);

  // Runs one step. `gradients` is memory for the gradients of all parameters and, after them, loss_elements more values. With
  // the rule `at`, the averages of a step may be applied during a later step.
  unisono::Status step(std::span<float> gradients);
  // Applies all averages that have not been applied yet, and stops computing in the background. The time between this call and
  // the next step is not counted as part of any step. If `last` is true, the run ends here, and the report is completed.
  unisono::Status drain_and_pause(bool last);

  // Returns the mean loss of all micro-batches that the ranks computed in the last step. If they computed none, returns the
  // loss of the step before.
  float loss() const { return loss_; }
  const DropRecord& last() const { return last_; }
  std::span<const std::string> warnings() const { return warnings_; }  // the warnings of all steps so far
  // Returns the share of micro-batches that this rank has dropped.
  double dropped() const {
    return planned_ == 0 ? 0 : static_cast<double>(planned_ - computed_) / static_cast<double>(planned_);
  }
  const unisono::DropCompute& compute() const { return drop_; }

 private:
  DropTraining(unisono::DropCompute drop, bool interrupts_micro_batches, const Borrowed& borrowed)
      : drop_(std::move(drop)), interrupts_micro_batches_(interrupts_micro_batches), borrowed_(borrowed) {}
  unisono::Status step_in_order(std::span<float> gradients);
  unisono::Status step_with_interruptions(std::span<float> gradients);
  unisono::DropWork work(uint64_t step);
  void note(const unisono::DropStep& step);
  void note_loss(std::span<const float> averages);

  unisono::DropCompute drop_;
  const bool interrupts_micro_batches_;  // true: the rule is `at`
  const Borrowed borrowed_;
  float loss_ = std::numeric_limits<float>::quiet_NaN();
  uint64_t planned_ = 0, computed_ = 0;
  uint64_t steps_ = 0;
  DropRecord last_;
  std::vector<bool> finite_;  // for each step: whether its averages may be used, as GradientExchange::applied() reported
  std::vector<std::string> warnings_;
};

}  // namespace language_model

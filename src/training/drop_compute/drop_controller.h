// A state machine that decides whether a worker computes another micro-batch. It handles one worker and one step at a time. It
// has no clock and no thread, and it allocates nothing during a step. Times are in ns and can come from any steady clock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "training/drop_compute/threshold_search.h"

namespace unisono {

class DropController {
 public:
  enum class Verdict : uint8_t { run_next, stop };
  struct StepOptions {
    std::optional<int64_t> threshold_ns{};  // If this is empty, nothing is dropped.
    uint32_t planned = 0;                   // number of micro-batches; it must not exceed the constructor's micro_batches
    // If this is set, the worker computes exactly this many micro-batches, however long they take.
    std::optional<uint32_t> forced{};
  };

  explicit DropController(uint32_t micro_batches) { ends_.reserve(micro_batches); }

  // Begins a step. Returns `stop` in two cases: no micro-batch is planned, or the rule is `before` and expects the first
  // micro-batch to end too late.
  Verdict begin(const StopRule& rule, const StepOptions& options, int64_t now);
  // Call this when the running micro-batch has ended. If the step has already stopped, the call changes nothing.
  Verdict micro_batch_done(int64_t now);
  // Used with the rule `at`: when the clock reaches timer_ns(), the caller must call timer(). An empty result means that there
  // is no timer.
  std::optional<int64_t> timer_ns() const;
  Verdict timer(int64_t now);
  // should_stop() returns whether the running micro-batch may be discarded now. abandon() discards it and stops the step.
  bool should_stop(int64_t now) const;
  void abandon() { stopped_ = true; }
  // Continues the step after this object has stopped it. Several processes can compute one replica of the model together. The
  // first of them decides for all, and it decided to continue.
  void continue_step() { stopped_ = false; }

  bool stopped() const { return stopped_; }
  uint32_t computed() const { return static_cast<uint32_t>(ends_.size()); }
  // Returns when the computed micro-batches ended, in ns since the start of the step.
  std::span<const int64_t> ends() const { return ends_; }
  // Returns true if it is certain that the running micro-batch is the last one of the step, however long it takes.
  bool is_last_running() const;

 private:
  Verdict decide();
  Verdict verdict() const { return stopped_ ? Verdict::stop : Verdict::run_next; }

  StopRule rule_;
  StepOptions options_;
  int64_t start_ = 0;
  bool stopped_ = true;
  std::vector<int64_t> ends_;
};

}  // namespace unisono

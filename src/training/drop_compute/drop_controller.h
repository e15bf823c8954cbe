// Decides whether a worker continues with its step's next micro-batch. A state machine of one worker, one step at a time; no
// clock, no thread, no allocation during a step. Times are ns of any steady clock.
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
    std::optional<int64_t> threshold_ns{};  // none: no drops
    uint32_t planned = 0;                   // micro-batches; at most the constructor's number
    std::optional<uint32_t> forced{};       // computes this many, whatever the time
  };

  explicit DropController(uint32_t micro_batches) { ends_.reserve(micro_batches); }

  // stop: nothing to compute, or the rule `before` stops at once.
  Verdict begin(const StopRule& rule, const StepOptions& options, int64_t now);
  // The running micro-batch is complete. After a stop nothing changes.
  Verdict micro_batch_done(int64_t now);
  // Rule `at`: timer_ns() is the time at which the timer must expire; call timer() when it did.
  std::optional<int64_t> timer_ns() const;
  Verdict timer(int64_t now);
  // Inside a running micro-batch: whether it may be discarded. abandon() does so, and stops the step without it.
  bool should_stop(int64_t now) const;
  void abandon() { stopped_ = true; }
  // After a stop: computes another one, because the replica's first process decided so.
  void go_on() { stopped_ = false; }

  bool stopped() const { return stopped_; }
  uint32_t computed() const { return static_cast<uint32_t>(ends_.size()); }
  // End times of the computed micro-batches, since the step's start.
  std::span<const int64_t> ends() const { return ends_; }
  // Whether the running micro-batch is certainly the step's last, whenever it ends.
  bool last_runs() const;

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

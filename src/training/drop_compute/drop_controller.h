// Whether a worker goes on with its step's next micro-batch: a state machine of one worker and one step at a time, without a
// clock, a thread or memory of its own in a step. Times are ns of any steady clock.
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
    std::optional<int64_t> threshold_ns{};  // none: nothing is dropped
    uint32_t planned = 0;                   // micro-batches; at most those of the constructor
    std::optional<uint32_t> forced{};       // computes so many whatever the time is
  };

  explicit DropController(uint32_t micro_batches) { ends_.reserve(micro_batches); }

  // stop: there is nothing to compute (or `before` says so already).
  Verdict begin(const StopRule& rule, const StepOptions& options, int64_t now);
  // The running one is complete. After a stop nothing changes any more.
  Verdict micro_batch_done(int64_t now);
  // Rule `at`: when its timer is to go off, and that it did.
  std::optional<int64_t> timer_ns() const;
  Verdict timer(int64_t now);
  // In a running micro-batch: it may be thrown away, by abandon(), which stops the step without it.
  bool should_stop(int64_t now) const;
  void abandon() { stopped_ = true; }
  // After a stop: another one is computed, because others say so.
  void go_on() { stopped_ = false; }

  bool stopped() const { return stopped_; }
  uint32_t computed() const { return static_cast<uint32_t>(ends_.size()); }
  // From the step's begin, of those that were computed.
  std::span<const int64_t> ends() const { return ends_; }
  // The running one is the step's last for certain, whenever it ends.
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

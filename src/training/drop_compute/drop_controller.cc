#include "training/drop_compute/drop_controller.h"

#include <algorithm>

#include "base/check.h"

namespace unisono {

using Rule = DropOptions::Rule;

DropController::Verdict DropController::begin(const StopRule& rule, const StepOptions& options, int64_t now) {
  rule_ = rule;
  options_ = options;
  start_ = now;
  ends_.clear();
  stopped_ = false;
  return decide();
}

DropController::Verdict DropController::micro_batch_done(int64_t now) {
  if (stopped_) return Verdict::stop;
  // The caller ensures this: StepOptions::planned must not exceed the micro_batches of the constructor.
  UNISONO_CHECK(ends_.size() < ends_.capacity());
  ends_.push_back(now - start_);
  return decide();
}

// Decides whether the step goes on after a micro-batch has ended. A micro-batch that ends exactly at the threshold is in time.
DropController::Verdict DropController::decide() {
  const uint32_t done = computed();
  if (done >= options_.planned) stopped_ = true;
  else if (options_.forced) stopped_ = done >= *options_.forced;
  else if (options_.threshold_ns && rule_.rule == Rule::after) {
    if (done >= rule_.min_computed && done > rule_.lag) stopped_ = ends_[done - rule_.lag - 1] > *options_.threshold_ns;
  } else if (options_.threshold_ns && rule_.rule == Rule::before) {
    if (done >= rule_.min_computed) stopped_ = (done == 0 ? 0 : ends_.back()) + rule_.micro_batch_ns > *options_.threshold_ns;
  }
  return verdict();
}

std::optional<int64_t> DropController::timer_ns() const {
  if (stopped_ || rule_.rule != Rule::at || !options_.threshold_ns || options_.forced) return {};
  return start_ + *options_.threshold_ns;
}

DropController::Verdict DropController::timer(int64_t now) {
  if (const auto due = timer_ns(); due && now >= *due) stopped_ = true;
  return verdict();
}

bool DropController::should_stop(int64_t now) const {
  if (stopped_) return true;
  return options_.threshold_ns && !options_.forced && computed() >= rule_.min_computed && now - start_ > *options_.threshold_ns;
}

// If the rule is `at` and there is a timer, the function returns false, because the timer may end the step during any
// micro-batch. If the rule is `after` with a lag, it can be known already that the running micro-batch is the last one: an
// earlier micro-batch has ended after the threshold.
bool DropController::is_last_running() const {
  if (stopped_ || timer_ns()) return false;
  const uint32_t done = computed() + 1;
  if (done >= options_.planned || (options_.forced && done >= *options_.forced)) return true;
  if (options_.forced || !options_.threshold_ns || rule_.rule != Rule::after || rule_.lag == 0) return false;
  return done >= rule_.min_computed && done > rule_.lag && ends_[done - rule_.lag - 1] > *options_.threshold_ns;
}

}  // namespace unisono

// Evaluates all thresholds at which the result changes, in one pass over the sorted times. The best threshold is one of them.
// Raising a threshold to a value between two of them gains nothing, because no worker computes more and no step becomes
// shorter.
#include <algorithm>
#include <vector>

#include "training/drop_compute/threshold_search.h"
#include "training/drop_compute/threshold_sums.h"

namespace unisono {
namespace {

using Rule = DropOptions::Rule;

// The end of a micro-batch. The fields `index` and `step` fit 32 bits, because ComputeTrace::check() limits the size of a
// trace.
struct Event {
  int64_t time = 0;
  uint32_t index = 0;  // index in ComputeTrace::ends
  uint32_t step = 0;
};

// Returns the ends in the order of their times. A time of less than 1 ns counts as 1 ns, which is the smallest threshold.
std::vector<Event> events_of(const ComputeTrace& trace) {
  std::vector<Event> events;
  events.reserve(trace.ends.size());
  const size_t per_step = size_t{trace.workers} * trace.micro_batches;
  for (size_t index = 0; index < trace.ends.size(); ++index) {
    events.push_back(
        {std::max<int64_t>(trace.ends[index], 1), static_cast<uint32_t>(index), static_cast<uint32_t>(index / per_step)});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) { return a.time < b.time; });
  return events;
}

// Evaluates the rule `at`. A step counts as closed if all its micro-batches end by the threshold: its length does not change,
// and its speed-up is 1. All other steps count as open. They last as long as the threshold.
class AtSweep {
 public:
  AtSweep(const ComputeTrace& trace, double other_ns)
      : other_ns_(other_ns), per_step_(uint64_t{trace.workers} * trace.micro_batches), sums_(sums_of(trace)) {
    for (size_t step = 0; step < trace.steps(); ++step) {
      compute_ns_.push_back(trace.compute_ns(step));
      sums_.whole_ns += static_cast<Wide>(compute_ns_.back());
    }
    last_ends_ = compute_ns_;
    std::sort(last_ends_.begin(), last_ends_.end());
  }

  void take(const Event& event) {
    ++sums_.computed;
    ++open_computed_;
    open_computed_ns_ += static_cast<Wide>(compute_ns_[event.step]);
  }

  ThresholdValue value(int64_t threshold_ns) {
    for (; closed_count_ < last_ends_.size() && last_ends_[closed_count_] <= threshold_ns; ++closed_count_) {
      open_computed_ -= per_step_;
      open_computed_ns_ -= static_cast<Wide>(last_ends_[closed_count_]) * per_step_;
      closed_ns_ += static_cast<Wide>(last_ends_[closed_count_]);
    }
    sums_.cut_ns = closed_ns_ + static_cast<Wide>(threshold_ns) * (last_ends_.size() - closed_count_);
    auto value = sums_.value(threshold_ns, other_ns_);
    const double open = (static_cast<double>(open_computed_ns_) + other_ns_ * static_cast<double>(open_computed_)) /
                        (static_cast<double>(threshold_ns) + other_ns_);
    value.step = (open + static_cast<double>(closed_count_ * per_step_)) / static_cast<double>(sums_.micro_batches);
    return value;
  }

 private:
  double other_ns_;
  uint64_t per_step_;
  std::vector<int64_t> compute_ns_;  // T_i of each step (the time at which its slowest worker has computed everything)
  // The values of compute_ns_ in ascending order. The first closed_count_ of them belong to closed steps.
  std::vector<int64_t> last_ends_;
  size_t closed_count_ = 0;
  Wide closed_ns_ = 0;
  uint64_t open_computed_ = 0;  // how many micro-batches are computed in open steps
  Wide open_computed_ns_ = 0;   // Each of these micro-batches adds T_i of its step.
  StepSums sums_;
};

// Evaluates the rule `after`. If a micro-batch ends in time, the worker also computes the micro-batch that is lag + 1 positions
// later. This can make the step longer.
class AfterSweep {
 public:
  AfterSweep(const ComputeTrace& trace, const StopRule& rule, double other_ns)
      : trace_(trace), other_ns_(other_ns), ahead_(uint64_t{rule.lag} + 1), sums_(sums_of(trace)) {
    least_ = std::min<uint64_t>(trace.micro_batches, std::max<uint64_t>(rule.min_computed, ahead_));
    for (size_t i = 0; i < trace.steps(); ++i) {
      Step step{.computed = least_ * trace.workers};
      for (size_t worker = 0; worker < trace.workers; ++worker)
        step.cut_ns = std::max(step.cut_ns, trace.ends_of(i, worker)[least_ - 1]);
      const int64_t whole_ns = trace.compute_ns(i);
      step.whole = static_cast<double>(whole_ns) + other_ns;
      step.speedup = in_speedup_units(step.whole, static_cast<double>(step.cut_ns) + other_ns);
      sums_.add(step.computed, whole_ns, step.cut_ns, other_ns);
      steps_.push_back(step);
    }
  }

  void take(const Event& event) {
    const uint64_t next = event.index % trace_.micro_batches + ahead_;
    if (next < least_ || next >= trace_.micro_batches) return;
    auto& step = steps_[event.step];
    ++step.computed;
    ++sums_.computed;
    sums_.speedup += step.speedup;
    if (const int64_t end = trace_.ends[event.index + ahead_]; end > step.cut_ns) lengthen(step, end);
  }

  ThresholdValue value(int64_t threshold_ns) const { return sums_.value(threshold_ns, other_ns_); }

 private:
  struct Step {
    uint64_t computed = 0;
    int64_t cut_ns = 0;
    double whole = 0;  // T_i + Tc: how long the step takes without a threshold
    Wide speedup = 0;
  };

  void lengthen(Step& step, int64_t cut_ns) {
    const Wide speedup = in_speedup_units(step.whole, static_cast<double>(cut_ns) + other_ns_);
    sums_.speedup -= step.computed * (step.speedup - speedup);
    sums_.cut_ns += static_cast<Wide>(cut_ns - step.cut_ns);
    step.speedup = speedup;
    step.cut_ns = cut_ns;
  }

  const ComputeTrace& trace_;
  double other_ns_;
  uint64_t ahead_;  // This is lag + 1: if micro-batch m ends in time, micro-batch m + ahead_ is computed, too.
  uint64_t least_ = 0;
  std::vector<Step> steps_;
  StepSums sums_;
};

template <typename Sweep>
std::vector<ThresholdValue> values_of(Sweep sweep, const std::vector<Event>& events, bool below_all) {
  std::vector<ThresholdValue> values;
  values.reserve(events.size() + 1);
  if (below_all && events.front().time > 1) values.push_back(sweep.value(1));
  for (auto event = events.begin(); event != events.end();) {
    const int64_t time = event->time;
    for (; event != events.end() && event->time == time; ++event) sweep.take(*event);
    values.push_back(sweep.value(time));
  }
  return values;
}

}  // namespace

std::vector<ThresholdValue> sweep(const ComputeTrace& trace, const StopRule& rule, double other_ns) {
  if (trace.ends.empty()) return {};
  const auto events = events_of(trace);
  if (rule.rule == Rule::at) return values_of(AtSweep(trace, other_ns), events, false);
  auto as_after = rule;
  if (rule.rule == Rule::before) as_after.lag = 0;
  auto values = values_of(AfterSweep(trace, as_after, other_ns), events, true);
  // The rule `before` compares the threshold with the time at which it predicts the next micro-batch to end: the previous end
  // plus lhat.
  if (rule.rule == Rule::before) {
    for (auto& value : values) value.threshold_ns += rule.micro_batch_ns;
  }
  return values;
}

}  // namespace unisono

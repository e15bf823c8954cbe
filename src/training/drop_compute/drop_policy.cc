#include "training/drop_compute/drop_policy.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "base/concat.h"

namespace unisono {
namespace {

using Threshold = DropOptions::Threshold;
using Rule = DropOptions::Rule;

// By this much, the dropped share that is measured in a window may differ from the predicted one.
constexpr double drift = 0.05;
constexpr uint64_t retry_steps = 2000;  // If dropping did not pay, it is tried again after this many steps.
constexpr size_t reason_bytes_max = 4096;

const char* name(Rule rule) { return rule == Rule::after ? "after" : rule == Rule::before ? "before" : "at"; }

int64_t fixed_ns(const DropOptions& options) { return std::max<int64_t>(1, std::llround(options.seconds * 1e9)); }

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

const char* state_of(DropPolicy::Phase phase) {
  switch (phase) {
    case DropPolicy::Phase::warming_up: return "warming up";
    case DropPolicy::Phase::calibrating: return "calibrating";
    case DropPolicy::Phase::dropping: return "dropping";
    case DropPolicy::Phase::off: return "off";
  }
  return "unknown";
}

}  // namespace

DropPolicy::DropPolicy(const DropOptions& options, uint32_t ranks, uint32_t micro_batches)
    : options_(options), ranks_(ranks), micro_batches_(micro_batches) {
  rule_ = {.rule = options.rule, .lag = options.lag, .min_computed = options.min_computed, .micro_batch_ns = 0};
  restart();
}

void DropPolicy::restart() {
  enter(Phase::warming_up);
  steps_left_ = options_.warmup_steps;
  if (steps_left_ == 0) end_warm_up();
}

void DropPolicy::enter(Phase phase) {
  phase_ = phase;
  steps_left_ = phase == Phase::calibrating ? options_.calibration_steps : 0;
  begin_window();
  if (phase == Phase::calibrating) recorded_from_ = next_step_;
}

void DropPolicy::begin_window() {
  window_from_ = next_step_;
  window_left_ = options_.window;
}

void DropPolicy::switch_off(std::string why) {
  why_off_ = std::move(why);
  enter(Phase::off);
}

// Returns the reason why nothing can ever be dropped, or null if there is no such reason.
const char* DropPolicy::never_drops_reason() const {
  if (options_.threshold == Threshold::off) return "";
  if (options_.threshold == Threshold::fixed) return nullptr;
  if (ranks_ == 1) return "one worker: no rank waits for it";
  if (options_.rule != Rule::at && (micro_batches_ <= 1 || options_.lag + 1 >= micro_batches_))
    return "nothing_to_drop: a step has no micro-batch that this rule could drop";
  return nullptr;
}

// Ends the warm-up (the first steps, in which nothing is dropped). A run that has loaded a checkpoint warms up again, and then
// keeps the decision that was made before the checkpoint.
void DropPolicy::end_warm_up() {
  if (const auto* why = never_drops_reason()) return switch_off(why);
  if (decision_) return decision_->off != 0 ? switch_off(why_off_) : enter(Phase::dropping);
  if (options_.threshold == Threshold::automatic || options_.rule == Rule::before) return enter(Phase::calibrating);
  recorded_from_ = next_step_;  // A fixed threshold needs no records, so no step has been recorded yet.
  adopt({.threshold_ns = fixed_ns(options_), .predicted_step = 0, .predicted_total = 0, .predicted_drop = 0}, {});
}

std::optional<int64_t> DropPolicy::threshold_ns() const {
  if (phase_ != Phase::dropping) return {};
  return decision_->threshold_ns;
}

DropPolicy::Gather DropPolicy::step_ended() {
  ++next_step_;
  --window_left_;
  switch (phase_) {
    case Phase::warming_up:
      if (--steps_left_ == 0) end_warm_up();
      return Gather::nothing;
    case Phase::calibrating:
      if (--steps_left_ == 0) return Gather::trace;
      break;
    case Phase::dropping:
    case Phase::off:
      if (calibrates_again()) return Gather::window;
      break;
  }
  return window_left_ == 0 ? Gather::window : Gather::nothing;
}

bool DropPolicy::calibrates_again() const {
  if (options_.threshold != Threshold::automatic || never_drops_reason() != nullptr) return false;
  if (retry_at_ != 0 && next_step_ >= retry_at_) return true;
  return options_.recalibrate != DropOptions::never && options_.recalibrate != DropOptions::on_drift &&
         next_step_ - decided_at_ >= options_.recalibrate;
}

void DropPolicy::describe(DropReport& report) const {
  report.state = state_of(phase_);
  report.rule = name(options_.rule);
  if (phase_ == Phase::off) report.off = why_off_;
  if (!decision_) return;
  if (phase_ == Phase::dropping) report.threshold = static_cast<double>(decision_->threshold_ns) * 1e-9;
  report.other = decision_->other_ns * 1e-9;
  report.micro_batch = static_cast<double>(decision_->micro_batch_ns) * 1e-9;
  report.predicted_drop = decision_->predicted_drop;
  report.predicted_step = decision_->predicted_step;
  report.predicted_total = decision_->predicted_total;
  report.per_second_before = decision_->per_second;
}

std::vector<std::string> DropPolicy::window_gathered(std::span<const std::vector<StepRecord>> ranks, bool last) {
  const auto sums = sums_of(ranks);
  report_ = {};
  report_.first_step = window_from_;
  report_.last_step = next_step_ - 1;
  describe(report_);
  fill(report_, sums);
  if (total_.steps == 0) total_from_ = window_from_;
  total_to_ = next_step_ - 1;
  total_.add(sums);
  begin_window();
  std::vector<std::string> warnings;
  if ((phase_ == Phase::dropping || phase_ == Phase::off) && calibrates_again()) return enter(Phase::calibrating), warnings;
  if (phase_ != Phase::dropping || last) return warnings;
  if (const auto straggler = persistent_straggler(drop_by_rank(sums))) {
    warnings.push_back(concat("persistent_straggler: rank ", straggler->worker, " has dropped ", percent(straggler->drop),
                              " of its micro-batches in ", sums.steps, " steps, the others ", percent(straggler->others),
                              " on average: give it fewer micro-batches, or training sees too little of its data"));
  }
  // A rank whose shard of the data is finished computes nothing, but the threshold is not the cause. Therefore the measured
  // rate is scaled up to what it would be if all ranks had computed.
  const double share =
      static_cast<double>(sums.planned) / (static_cast<double>(ranks_) * micro_batches_ * static_cast<double>(sums.steps));
  if (options_.threshold == Threshold::automatic && share > 0) compare_with_prediction(report_.per_second / share, warnings);
  return warnings;
}

// Compares the measurements of the window with the prediction. If they differ too much, records steps again or switches
// dropping off.
void DropPolicy::compare_with_prediction(double per_second, std::vector<std::string>& warnings) {
  if (options_.recalibrate == DropOptions::on_drift && std::abs(report_.drop - decision_->predicted_drop) > drift) {
    warnings.push_back(concat("drift: ", percent(report_.drop), " were dropped, ", percent(decision_->predicted_drop),
                              " were predicted: the next ", options_.calibration_steps, " steps are recorded without drops"));
    enter(Phase::calibrating);
  } else if (report_.drop > options_.max_drop + drift) {
    decision_->off = 1;
    switch_off(concat("dropped ", percent(report_.drop), " in ", report_.steps, " steps, more than max_drop (",
                      percent(options_.max_drop), ") plus ", percent(drift)));
  } else if (per_second < decision_->per_second) {
    decision_->off = 1;
    switch_off(concat("not faster: ", number(per_second), " micro-batches/s in ", report_.steps, " steps, ",
                      number(decision_->per_second), " without drops"));
    retry_at_ = next_step_ + retry_steps;
  }
}

DropReport DropPolicy::total() const {
  DropReport report;
  // If there are no steps, this is the step with which a report would begin.
  report.first_step = total_.steps == 0 ? next_step_ : total_from_;
  report.last_step = total_.steps == 0 ? next_step_ - 1 : total_to_;
  describe(report);
  report.per_second_before = 0;
  fill(report, total_);
  return report;
}

bool DropPolicy::extend(size_t recorded) {
  if (recorded >= std::max<uint32_t>(1, options_.min_calibration_steps)) return false;
  steps_left_ = std::max<uint32_t>(1, options_.min_calibration_steps) - recorded;
  // If there is no step yet that all ranks have recorded, the steps so far will never be useful. Recording restarts after them,
  // so that the table does not grow.
  if (recorded == 0) recorded_from_ = next_step_;
  return true;
}

DropPolicy::Decision DropPolicy::decision_of(const ComputeTrace& trace, std::string& why_off) const {
  Decision decision{.other_ns = trace.other_ns(), .trace_hash = trace.hash()};
  const auto found = search(trace, search_options(options_, trace));
  auto best = found.best;
  why_off = found.off;
  decision.micro_batch_ns = trace.micro_batch_ns();
  if (options_.threshold == Threshold::fixed) {
    const auto options = search_options(options_, trace);
    best = value_of(trace, options.rule, fixed_ns(options_), decision.other_ns);
    why_off.clear();
  }
  decision.threshold_ns = best.threshold_ns;
  decision.predicted_step = best.step, decision.predicted_total = best.total, decision.predicted_drop = best.drop;
  decision.off = why_off.empty() ? 0 : 1;
  double wall = 0;
  for (const auto each : trace.walls) wall += static_cast<double>(each) * 1e-9;
  if (wall > 0) decision.per_second = static_cast<double>(trace.walls.size()) * trace.micro_batches * trace.workers / wall;
  return decision;
}

void DropPolicy::adopt(const Decision& decision, const std::string& why_off) {
  decision_ = decision;
  decided_at_ = next_step_;
  retry_at_ = 0;
  rule_.micro_batch_ns = decision.micro_batch_ns;
  if (decision.off != 0) switch_off(why_off);
  else why_off_.clear(), enter(Phase::dropping);
}

void DropPolicy::update_prediction(const ComputeTrace& trace) {
  if (!decision_) return;
  const auto value = options_.rule == Rule::at ? replayed(trace, decision_->threshold_ns, decision_->other_ns)
                                               : value_of(trace, rule_, decision_->threshold_ns, decision_->other_ns);
  decision_->predicted_step = value.step, decision_->predicted_total = value.total, decision_->predicted_drop = value.drop;
  begin_report();
}

void DropPolicy::ranks_changed(uint32_t ranks) {
  const bool more = ranks > ranks_;
  if (decision_) decision_->per_second *= static_cast<double>(ranks) / ranks_;
  ranks_ = ranks;
  total_ = {};
  begin_window();
  if (const auto* why = never_drops_reason()) {
    switch_off(why);
  } else if (phase_ == Phase::off && more) {
    // If there are more ranks, they wait longer for the slowest one, so dropping may pay now.
    if (decision_ && decision_->off != 0) decision_.reset();
    restart();
  }
  // The group broke after the last recorded step, but before the ranks had exchanged their records. Recording one more step
  // requests the exchange again.
  if (phase_ == Phase::calibrating && steps_left_ == 0) steps_left_ = 1;
  begin_report();
}

// Starts an empty report. The earlier report may differ between ranks: a new rank has none, and another rank may have missed an
// exchange.
void DropPolicy::begin_report() {
  report_ = {};
  report_.first_step = next_step_;
  describe(report_);
}

void DropPolicy::write(ByteWriter& writer) const {
  writer.write(ranks_)
      .write(phase_)
      .write(next_step_)
      .write(steps_left_)
      .write(recorded_from_)
      .write(decided_at_)
      .write(retry_at_);
  writer.write(static_cast<uint8_t>(decision_ ? 1 : 0)).write(decision_.value_or(Decision{})).write_string(why_off_);
}

bool DropPolicy::read(ByteReader& reader) {
  DropPolicy read = *this;
  read.ranks_ = reader.read<uint32_t>();
  read.phase_ = reader.read<Phase>();
  read.next_step_ = reader.read<uint64_t>();
  read.steps_left_ = reader.read<uint64_t>();
  read.recorded_from_ = reader.read<uint64_t>();
  read.decided_at_ = reader.read<uint64_t>();
  read.retry_at_ = reader.read<uint64_t>();
  const bool decided = reader.read<uint8_t>() != 0;
  const auto decision = reader.read<Decision>();
  read.why_off_ = reader.read_string(reason_bytes_max);
  if (!reader.ok() || read.ranks_ == 0 || read.phase_ > Phase::off || read.next_step_ == 0 ||
      (read.phase_ == Phase::dropping && !decided) || (read.phase_ == Phase::warming_up && read.steps_left_ == 0))
    return false;
  read.decision_ = decided ? std::optional(decision) : std::nullopt;
  read.rule_.micro_batch_ns = decided ? decision.micro_batch_ns : 0;
  read.total_ = {};
  read.begin_window();
  *this = std::move(read);
  return true;
}

}  // namespace unisono

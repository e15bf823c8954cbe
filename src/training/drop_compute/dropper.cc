#include "training/drop_compute/dropper.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

namespace unisono::internal {
namespace {

using Phase = DropPolicy::Phase;
using Rule = DropOptions::Rule;
using Normalize = DropOptions::Normalize;

constexpr size_t pending_max = 4;  // averages that may wait for an abandoned micro-batch; with more, the step waits

int64_t steady_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Dropper::Dropper(uint32_t micro_batches, const DropOptions& options, const std::optional<Group>& replica, const Now& now)
    : options_(options),
      micro_batches_(micro_batches),
      now_(now ? now : Now(&steady_now)),
      replica_(replica),
      policy_(options, 1, micro_batches),
      controller_(micro_batches),
      shard_left_(options.shard) {}

Status Dropper::begin_step() {
  if (begun_) return {Code::invalid, "begin_step() without end_step() before"};
  settle();
  if (unsure_)
    return {Code::invalid,
            "the last step failed after its micro-batches, but other ranks may have completed it: call resume() on all ranks, "
            "after "
            "Group::reform() if a rank is lost"};
  if (loaded_) {
    if (auto status = agree_on_checkpoints(); !status.ok()) return status;
  }
  const auto now = now_();
  const bool gathers = due_ != DropPolicy::Gather::nothing;
  // `at` counts from the last all-reduce, unless ranks waited for each other since.
  close_last_step(reduced_ && !gathers ? *reduced_ : now);
  if (auto status = gather(); !status.ok()) return status;
  if (window_from_ != policy_.window_from()) window_.clear(), window_from_ = policy_.window_from();
  if (policy_.records() && recorded_from_ != policy_.recorded_from())
    recorded_.clear(), recorded_from_ = policy_.recorded_from();
  begin_computing(reduced_ && !gathers ? *reduced_ : gathers ? now_() : now);
  reduced_.reset();
  return {};
}

// Exchanges the data that is due.
Status Dropper::gather() {
  if (due_ == DropPolicy::Gather::nothing) return {};
  if (auto status = gather_window(); !status.ok()) return status;
  if (due_ == DropPolicy::Gather::trace) {
    if (auto status = gather_trace(); !status.ok()) return status;
  }
  due_ = DropPolicy::Gather::nothing;
  return {};
}

// Waits for the all-reduce of counts, because the group writes to them until it ends.
void Dropper::settle() {
  if (counting_) (void)counting_.wait();
  counting_ = {};
}

// Sets the last step's wall time, which is known only now. Failed steps leave no record.
void Dropper::close_last_step(int64_t now) {
  if (start_ == 0) return;
  if (!window_.empty() && window_.back().wall_ns == 0) window_.back().wall_ns = now - start_;
  if (open_record_) recorded_.back().wall_ns = now - start_;
  open_record_ = false;
}

void Dropper::pause() {
  if (begun_) return;
  close_last_step(now_());
  start_ = 0;
  reduced_.reset();
}

DropController::StepOptions Dropper::step_options() const {
  DropController::StepOptions options;
  const auto step = policy_.next_step();
  options.planned =
      options_.shard == 0 ? micro_batches_ : static_cast<uint32_t>(std::min<uint64_t>(micro_batches_, shard_left_));
  if (step > untimed_until_) options.threshold_ns = policy_.threshold_ns();
  if (step <= options_.replay.size()) options.forced = options_.replay[step - 1];
  return options;
}

void Dropper::begin_computing(int64_t now) {
  begun_ = true;
  runs_ = false;
  failure_ = {};
  start_ = now;
  stopped_ = 0;
  sums_ = {};
  controller_.begin(policy_.rule(), step_options(), now);
}

bool Dropper::next() {
  if (!begun_ || stopped_ != 0) return false;
  if (options_.rule == Rule::at && options_.threshold != DropOptions::Threshold::off) {
    failure_ = {Code::invalid, "rule_needs_second_buffer: the rule at interrupts a running micro-batch; use run()"};
    return stop(), false;
  }
  if (!runs_) return decide(controller_.stopped() ? DropController::Verdict::stop : DropController::Verdict::run_next);
  if (policy_.phase() == Phase::warming_up && !replica_ && !controller_.last_runs() &&
      outer_->counters().begun > calls_before_) {
    failure_ = {Code::invalid,
                "collective_inside_micro_batch: the group's collectives were called while a micro-batch was computed; a rank "
                "that leaves it out would leave the others waiting"};
  }
  return decide(controller_.micro_batch_done(now_()));
}

// In a replica, the first process decides for all.
bool Dropper::decide(DropController::Verdict verdict) {
  bool goes_on = verdict == DropController::Verdict::run_next && failure_.ok();
  if (replica_) {
    uint8_t told = goes_on ? 1 : 0;
    if (auto sent = replica_->broadcast(std::span(&told, 1), 0); !sent.ok()) failure_ = sent.status();
    goes_on = told != 0 && failure_.ok() && controller_.computed() < micro_batches_;
    if (goes_on) controller_.go_on();
  }
  if (goes_on) micro_batch_begins();
  else stop();
  return goes_on;
}

void Dropper::micro_batch_begins() {
  runs_ = true;
  // Checked only during warm-up: it costs a microsecond or two.
  if (policy_.phase() == Phase::warming_up && !replica_) calls_before_ = outer_->counters().begun;
}

// From here on, nothing of this step depends on the time.
void Dropper::stop() {
  if (stopped_ != 0) return;
  stopped_ = std::max<int64_t>(1, now_());
  controller_.abandon();
  runs_ = false;
  unsure_ = true;
  uncertain_ = taken();
  if (!counts_ || group_->world_size() == 1) return;
  const uint64_t planned = step_options().planned;
  sums_ = {controller_.computed(), planned, options_.shard == 0 || shard_left_ > taken() ? 1u : 0u};
  counting_ = group_->all_reduce_async(std::span<uint64_t>(sums_));
}

// Advance of the data position.
uint64_t Dropper::taken() const {
  return options_.tail == DropOptions::Tail::discard ? step_options().planned : controller_.computed();
}

bool Dropper::should_stop() const { return begun_ && runs_ && !replica_ && controller_.should_stop(now_()); }

void Dropper::abandon() {
  if (should_stop()) stop();
}

Result<DropStep> Dropper::end_step() {
  if (!begun_) return Status(Code::invalid, "end_step() without begin_step() before");
  stop();
  const auto options = step_options();
  const uint32_t computed = controller_.computed();
  DropStep step{.step = policy_.next_step(), .planned = options.planned, .computed = computed, .compute_ns = stopped_ - start_};
  // Without counts, some rank has computed something: min_computed is at least 1, and no shard ends.
  if (counting_) {
    if (auto counted = counting_.wait(); !counted.ok()) return begun_ = false, counted.status();
    counting_ = {};
  } else {
    sums_ = {computed, options.planned, options_.shard == 0 || shard_left_ > taken() ? 1u : 0u};
  }
  begun_ = false;
  if (!failure_.ok()) return failure_;
  if (counts_) {
    step.applied = sums_[0] > 0;
    if (options_.normalize == Normalize::computed && step.applied)
      step.scale =
          static_cast<float>(static_cast<double>(micro_batches_) * group_->world_size() / static_cast<double>(sums_[0]));
    step.epoch_ended = sums_[2] == 0;
  }
  unsure_ = false;
  epoch_ended_ = step.epoch_ended;
  if (options_.shard > 0) shard_left_ = step.epoch_ended ? options_.shard : shard_left_ - taken();
  position_ += std::exchange(uncertain_, 0);
  window_.push_back({.planned = options.planned, .computed = computed, .compute_ns = step.compute_ns, .wall_ns = 0});
  if (policy_.records() && step.step > untimed_until_ && computed == micro_batches_) {
    recorded_.push_back({.step = step.step, .wall_ns = 0, .ends = {controller_.ends().begin(), controller_.ends().end()}});
    open_record_ = true;
  }
  due_ = policy_.step_ended();
  step.warnings = std::exchange(warnings_, {});
  if (options_.rule == Rule::at) reduced_ = now_();
  return step;
}

std::string Dropper::recorded() const {
  std::string text;
  for (const auto& record : recorded_) {
    if (record.wall_ns == 0) continue;
    text += std::to_string(record.step) + "," + std::to_string(group_->rank()) + "," + std::to_string(record.wall_ns);
    for (const auto end : record.ends) text += "," + std::to_string(end);
    text += "\n";
  }
  return text;
}

Status Dropper::reduce(std::span<float> gradients, const DropWork& work) {
  if (work.reduce) return work.reduce(gradients);
  return outer_->all_reduce(gradients, {.op = ReduceOp::avg}).status();
}

void Dropper::use(const DropWork& work, std::span<float> averages, const DropStep& step) {
  if (!step.applied) return;
  if (step.scale != 1) {
    for (float& value : averages) value *= step.scale;
  }
  if (work.apply) work.apply(averages, step);
}

void Dropper::use_pending(const DropWork& work) {
  for (auto& each : pending_) use(work, each.averages, each.step);
  pending_.clear();
}

Result<DropStep> Dropper::run(std::span<float> gradients, const DropWork& work) {
  if (!work.compute) return Status(Code::invalid, "run() without a function that computes");
  auto step = options_.rule == Rule::at ? run_at(gradients, work) : run_inline(gradients, work);
  std::fill(gradients.begin(), gradients.end(), 0.0f);  // also after an error, as the step may be tried again
  return step;
}

Result<DropStep> Dropper::run_inline(std::span<float> gradients, const DropWork& work) {
  if (auto status = begin_step(); !status.ok()) return status;
  while (next()) {
    if (auto status = work.compute(position(), gradients); !status.ok()) return begun_ = false, status;
  }
  if (auto status = reduce(gradients, work); !status.ok()) return begun_ = false, status;
  auto step = end_step();
  if (step.ok()) use(work, gradients, *step);
  return step;
}

// An abandoned micro-batch may take longer than the whole next step. Then this rank joins that step with zeros, and both steps'
// averages wait.
Result<DropStep> Dropper::run_at(std::span<float> gradients, const DropWork& work) {
  if (!background_) {
    auto made = BackgroundCompute::make(gradients.size(), now_);
    if (!made.ok()) return made.status();
    background_ = *std::move(made);
  }
  if (gradients.size() != background_->elements())
    return Status(Code::invalid, "run() with " + std::to_string(gradients.size()) + " gradients, and with " +
                                     std::to_string(background_->elements()) + " before");
  if (auto status = begin_step(); !status.ok()) return status;
  const bool may_wait = pending_.size() < pending_max;
  if (background_->wait_idle_until(may_wait ? controller_.timer_ns() : std::nullopt)) {
    use_pending(work);
    background_->start(controller_, {.gradients = gradients, .compute = work.compute, .position = position_});
    if (auto status = background_->close(); !status.ok()) return begun_ = false, status;
  } else {
    controller_.abandon();
  }
  stop();
  if (auto status = reduce(gradients, work); !status.ok()) return begun_ = false, status;
  auto step = end_step();
  if (!step.ok()) return step;
  const auto threshold = policy_.threshold_ns();
  if (!background_->wait_idle_until(threshold ? std::optional(*reduced_ + *threshold) : std::nullopt)) {
    if (set_aside(gradients, *step)) return step;
    background_->wait_idle_until({});
  }
  use_pending(work);
  use(work, gradients, *step);
  return step;
}

// False: no memory for a copy. The averages must be used nevertheless, as all other ranks use them.
bool Dropper::set_aside(std::span<const float> averages, const DropStep& step) {
  try {
    pending_.push_back({.averages = {averages.begin(), averages.end()}, .step = step});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Status Dropper::drain(const DropWork& work) {
  if (background_) background_->wait_idle_until({});
  use_pending(work);
  return {};
}

}  // namespace unisono::internal

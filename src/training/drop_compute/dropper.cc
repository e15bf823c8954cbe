#include "training/drop_compute/dropper.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "base/concat.h"

namespace unisono::internal {
namespace {

using Phase = DropPolicy::Phase;
using Rule = DropOptions::Rule;
using Normalize = DropOptions::Normalize;

// While an abandoned micro-batch is running, averages are kept to be applied later. When this many are kept, the next step
// first waits until the micro-batch has ended.
constexpr size_t pending_max = 4;

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
  if (begun_) return {Code::invalid, "begin_step() was called twice: call end_step() first"};
  wait_for_counts();
  if (outcome_unknown_)
    return {Code::invalid,
            "the last step failed after its micro-batches, but other ranks may have completed it: call resume() on all ranks, "
            "after "
            "Group::reform() if a rank is lost"};
  if (loaded_) {
    if (auto status = check_same_checkpoint(); !status.ok()) return status;
  }
  const auto now = now_();
  const bool gathers = due_gather_ != DropPolicy::Gather::nothing;
  // With the rule `at`, a step begins when the last all-reduce ended. If the ranks exchange data now, the step begins after
  // that exchange, because the exchange synchronises the ranks.
  close_last_step(reduced_at_ && !gathers ? *reduced_at_ : now);
  if (auto status = gather(); !status.ok()) return status;
  if (window_from_ != policy_.window_from()) window_.clear(), window_from_ = policy_.window_from();
  if (policy_.records() && recorded_from_ != policy_.recorded_from())
    recorded_.clear(), recorded_from_ = policy_.recorded_from();
  begin_computing(reduced_at_ && !gathers ? *reduced_at_ : gathers ? now_() : now);
  reduced_at_.reset();
  return {};
}

// Runs the exchange that DropPolicy::step_ended() requested.
Status Dropper::gather() {
  if (due_gather_ == DropPolicy::Gather::nothing) return {};
  if (auto status = gather_window(); !status.ok()) return status;
  if (due_gather_ == DropPolicy::Gather::trace) {
    if (auto status = gather_trace(); !status.ok()) return status;
  }
  due_gather_ = DropPolicy::Gather::nothing;
  return {};
}

// Waits until the all-reduce of the counts has ended, because it writes to sums_.
void Dropper::wait_for_counts() {
  if (counts_work_) (void)counts_work_.wait();
  counts_work_ = {};
}

// Records how long the last step took. This is known only when the next step begins. A step that failed has no record.
void Dropper::close_last_step(int64_t now) {
  if (step_start_ == 0) return;
  if (!window_.empty() && window_.back().wall_ns == 0) window_.back().wall_ns = now - step_start_;
  if (open_record_) recorded_.back().wall_ns = now - step_start_;
  open_record_ = false;
}

void Dropper::pause() {
  if (begun_) return;
  close_last_step(now_());
  step_start_ = 0;
  reduced_at_.reset();
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
  running_ = false;
  failure_ = {};
  step_start_ = now;
  stopped_at_ = 0;
  sums_ = {};
  controller_.begin(policy_.rule(), step_options(), now);
}

bool Dropper::next() {
  if (!begun_ || stopped_at_ != 0) return false;
  if (options_.rule == Rule::at && options_.threshold != DropOptions::Threshold::off) {
    failure_ = {Code::invalid, "rule_needs_second_buffer: the rule at interrupts a running micro-batch; use run()"};
    return stop(), false;
  }
  if (!running_) return decide(controller_.stopped() ? DropController::Verdict::stop : DropController::Verdict::run_next);
  if (policy_.phase() == Phase::warming_up && !replica_ && !controller_.is_last_running() &&
      outer_->counters().begun > calls_before_) {
    failure_ = {Code::invalid,
                "collective_inside_micro_batch: the group's collectives were called while a micro-batch was computed; a rank "
                "that drops the micro-batch would leave the others waiting"};
  }
  return decide(controller_.micro_batch_done(now_()));
}

// If a replica has several processes, its first process decides for all of them.
bool Dropper::decide(DropController::Verdict verdict) {
  bool continues = verdict == DropController::Verdict::run_next && failure_.ok();
  if (replica_) {
    uint8_t decided = continues ? 1 : 0;
    if (auto sent = replica_->broadcast(std::span(&decided, 1), 0); !sent.ok()) failure_ = sent.status();
    continues = decided != 0 && failure_.ok() && controller_.computed() < micro_batches_;
    if (continues) controller_.continue_step();
  }
  if (continues) start_micro_batch();
  else stop();
  return continues;
}

void Dropper::start_micro_batch() {
  running_ = true;
  // This number is used to detect whether the program makes collective calls inside a micro-batch. Reading it costs a
  // microsecond or two, so this check is made only during the warm-up.
  if (policy_.phase() == Phase::warming_up && !replica_) calls_before_ = outer_->counters().begun;
}

// Ends the computing of this step. From here on, nothing in the step depends on the time.
void Dropper::stop() {
  if (stopped_at_ != 0) return;
  stopped_at_ = std::max<int64_t>(1, now_());
  controller_.abandon();
  running_ = false;
  outcome_unknown_ = true;
  unconfirmed_ = position_advance();
  if (!exchanges_counts_ || group_->world_size() == 1) return;
  const uint64_t planned = step_options().planned;
  sums_ = {controller_.computed(), planned, options_.shard == 0 || shard_left_ > position_advance() ? 1u : 0u};
  counts_work_ = group_->all_reduce_async(std::span<uint64_t>(sums_));
}

// Returns by how many micro-batches the step advances the data position.
uint64_t Dropper::position_advance() const {
  return options_.tail == DropOptions::Tail::discard ? step_options().planned : controller_.computed();
}

bool Dropper::should_stop() const { return begun_ && running_ && !replica_ && controller_.should_stop(now_()); }

void Dropper::abandon() {
  if (should_stop()) stop();
}

Result<DropStep> Dropper::end_step() {
  if (!begun_) return Status(Code::invalid, "end_step() was called without begin_step()");
  stop();
  const auto options = step_options();
  const uint32_t computed = controller_.computed();
  DropStep step{
      .step = policy_.next_step(), .planned = options.planned, .computed = computed, .compute_ns = stopped_at_ - step_start_};
  // If the ranks do not exchange counts, there are no shards and min_computed is at least 1, so every rank has computed
  // something.
  if (counts_work_) {
    if (auto counted = counts_work_.wait(); !counted.ok()) return begun_ = false, counted.status();
    counts_work_ = {};
  } else {
    sums_ = {computed, options.planned, options_.shard == 0 || shard_left_ > position_advance() ? 1u : 0u};
  }
  begun_ = false;
  if (!failure_.ok()) return failure_;
  if (exchanges_counts_) {
    step.applied = sums_[0] > 0;
    if (options_.normalize == Normalize::computed && step.applied)
      step.scale =
          static_cast<float>(static_cast<double>(micro_batches_) * group_->world_size() / static_cast<double>(sums_[0]));
    step.epoch_ended = sums_[2] == 0;
  }
  outcome_unknown_ = false;
  epoch_ended_ = step.epoch_ended;
  if (options_.shard > 0) shard_left_ = step.epoch_ended ? options_.shard : shard_left_ - position_advance();
  position_ += std::exchange(unconfirmed_, 0);
  window_.push_back({.planned = options.planned, .computed = computed, .compute_ns = step.compute_ns, .wall_ns = 0});
  if (policy_.records() && step.step > untimed_until_ && computed == micro_batches_) {
    recorded_.push_back({.step = step.step, .wall_ns = 0, .ends = {controller_.ends().begin(), controller_.ends().end()}});
    open_record_ = true;
  }
  due_gather_ = policy_.step_ended();
  step.warnings = std::exchange(warnings_, {});
  if (options_.rule == Rule::at) reduced_at_ = now_();
  return step;
}

std::string Dropper::recorded() const {
  std::string text;
  for (const auto& record : recorded_) {
    if (record.wall_ns == 0) continue;
    text += concat(record.step, ",", group_->rank(), ",", record.wall_ns);
    for (const auto end : record.ends) text += concat(",", end);
    text += "\n";
  }
  return text;
}

Status Dropper::reduce(std::span<float> gradients, const DropWork& work) {
  if (work.reduce) return work.reduce(gradients);
  return outer_->all_reduce(gradients, {.op = ReduceOp::avg}).status();
}

void Dropper::apply(const DropWork& work, std::span<float> averages, const DropStep& step) {
  if (!step.applied) return;
  if (step.scale != 1) {
    for (float& value : averages) value *= step.scale;
  }
  if (work.apply) work.apply(averages, step);
}

void Dropper::apply_pending(const DropWork& work) {
  for (auto& each : pending_) apply(work, each.averages, each.step);
  pending_.clear();
}

Result<DropStep> Dropper::run(std::span<float> gradients, const DropWork& work) {
  if (!work.compute) return Status(Code::invalid, "run() without a function that computes");
  auto step = options_.rule == Rule::at ? run_at(gradients, work) : run_inline(gradients, work);
  // The gradients are cleared after an error, too, because the caller may repeat the step.
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  return step;
}

Result<DropStep> Dropper::run_inline(std::span<float> gradients, const DropWork& work) {
  if (auto status = begin_step(); !status.ok()) return status;
  while (next()) {
    if (auto status = work.compute(position(), gradients); !status.ok()) return begun_ = false, status;
  }
  if (auto status = reduce(gradients, work); !status.ok()) return begun_ = false, status;
  auto step = end_step();
  if (step.ok()) apply(work, gradients, *step);
  return step;
}

// An abandoned micro-batch may still be running when the next step ends. This rank then contributes zeros to that step, and
// applies the averages of both steps when the micro-batch has ended.
Result<DropStep> Dropper::run_at(std::span<float> gradients, const DropWork& work) {
  if (!background_) {
    auto made = BackgroundCompute::make(gradients.size(), now_);
    if (!made.ok()) return made.status();
    background_ = *std::move(made);
  }
  if (gradients.size() != background_->elements())
    return Status(Code::invalid, concat("run() was given ", gradients.size(), " gradients, but ", background_->elements(),
                                        " in earlier steps"));
  if (auto status = begin_step(); !status.ok()) return status;
  const bool may_wait = pending_.size() < pending_max;
  if (background_->wait_idle_until(may_wait ? controller_.timer_ns() : std::nullopt)) {
    apply_pending(work);
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
  if (!background_->wait_idle_until(threshold ? std::optional(*reduced_at_ + *threshold) : std::nullopt)) {
    if (defer(gradients, *step)) return step;
    background_->wait_idle_until({});
  }
  apply_pending(work);
  apply(work, gradients, *step);
  return step;
}

// Copies the averages so that they can be applied later. Returns false if there is no memory for the copy. The caller must then
// wait and apply the averages itself, because all other ranks apply them, too.
bool Dropper::defer(std::span<const float> averages, const DropStep& step) {
  try {
    pending_.push_back({.averages = {averages.begin(), averages.end()}, .step = step});
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

Status Dropper::drain(const DropWork& work) {
  if (background_) background_->wait_idle_until({});
  apply_pending(work);
  return {};
}

}  // namespace unisono::internal

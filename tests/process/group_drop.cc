#include "group_drop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono::testing {
namespace {

using Clock = std::chrono::steady_clock;

template <typename Value>
uint64_t hash_of_all(const std::vector<Value>& all) {
  return hash_of(std::as_bytes(std::span(all)));
}

void work_for(std::chrono::nanoseconds time) {
  for (const auto end = Clock::now() + time; Clock::now() < end;) continue;
}

// Returns a hash of all fields. Numbers are written in full precision, so the hash changes if a single bit changes.
uint64_t hash_of_report(const DropReport& report) {
  std::string text =
      concat(report.state, report.rule, report.off, report.first_step, "/", report.steps, "/", report.drop_most_rank);
  for (const double value :
       {report.threshold, report.other, report.micro_batch, report.predicted_drop, report.drop, report.drop_most,
        report.predicted_step, report.predicted_total, report.per_second_before, report.per_second, report.step_mean,
        report.step_deviation, report.compute_mean, report.compute_deviation, report.arrival_spread, report.extra_steps}) {
    char digits[40];
    std::snprintf(digits, sizeof digits, "/%a", value);
    text += digits;
  }
  return hash_of(std::as_bytes(std::span(text)));
}

}  // namespace

struct DropTraining::Death {
  bool in_compute = false;
  uint32_t micro_batch = 0;
  uint64_t at = 0;  // thousandths of the time of the micro-batch or of the all-reduce
};

Answer DropTraining::run(Group& group, const Command& command, const std::function<void()>& begun) {
  if (command.name == "drop_make") return make(group, command);
  if (!drop_) misuse(command.name + " before drop_make");
  if (command.name == "drop_train") return train(group, command, begun);
  if (auto status = drop_->resume(group); !status.ok()) return {status, {}};
  return handshake(group);
}

Answer DropTraining::make(Group& group, const Command& command) {
  auto text = command.text("options", "off");
  std::replace(text.begin(), text.end(), '/', ',');
  auto options = DropOptions::parse(text);
  if (!options.ok()) return {options.status(), {}};
  options->shard = command.number("shard", 0);
  auto made = DropCompute::make(group, micro_batches, *options);
  if (!made.ok()) return {made.status(), {}};
  drop_ = *std::move(made);
  slot_ = command.number("slot", 0);
  if (command.number("ring", 0) != 0) schedule_ = ScheduleKind::ring;
  parameters_.assign(command.number("values", 20'000), 1);
  gradients_.assign(parameters_.size(), 0);
  counted_.assign(slots, 0);
  step_ = dropped_ = 0;
  return handshake(group);
}

// Some ranks may be one step behind the others, and some are new. Therefore a rank with the largest number of steps broadcasts
// its state.
Answer DropTraining::handshake(Group& group) {
  std::vector<uint64_t> steps(group.world_size());
  steps[group.rank()] = step_;
  if (auto gathered = group.all_gather(std::span(steps)); !gathered.ok()) return {gathered.status(), {}};
  const auto from = static_cast<uint32_t>(std::max_element(steps.begin(), steps.end()) - steps.begin());
  const bool lacks = step_ < steps[from];
  step_ = steps[from];
  if (auto sent = group.broadcast(std::span(parameters_), from); !sent.ok()) return {sent.status(), {}};
  if (auto sent = group.broadcast(std::span(counted_), from); !sent.ok()) return {sent.status(), {}};
  return state().add("lacked", lacks ? 1 : 0);
}

Answer DropTraining::state() const {
  return Answer()
      .add("step", step_)
      .add("parameters", hash_of_all(parameters_))
      .add("counted", hash_of_all(counted_))
      .add("used", counted_[slot_])
      .add("position", drop_->position())
      .add("dropped", dropped_)
      .add("first", drop_->total().first_step)
      .add("searched", drop_->total().micro_batch > 0 ? 1 : 0)
      .add("report", hash_of_report(drop_->report()))
      .add("total", hash_of_report(drop_->total()));
}

// In the gradient with the index slot_, each process counts its own micro-batches. The gradients after all slots are random.
Status DropTraining::compute(uint64_t position, std::span<float> gradients, const Death* death) {
  Random random(mix64(position) ^ mix64(slot_ + 1));
  const auto time = std::chrono::nanoseconds(20'000 + random.below(random.below(6) == 0 ? 1'000'000 : 50'000));
  if (death != nullptr && death->in_compute && begun_ == death->micro_batch) {
    work_for(time * death->at / 1000);
    ::raise(SIGKILL);
  }
  ++begun_;
  work_for(time);
  gradients[slot_] += 1;
  for (size_t i = slots; i < gradients.size(); ++i) gradients[i] += static_cast<float>(random.unit() - 0.5) / micro_batches;
  return {};
}

Status DropTraining::reduce(Group& group, std::span<float> gradients, const Death* death) {
  const auto began = Clock::now();
  if (death != nullptr && !death->in_compute) {
    auto work = group.all_reduce_async(gradients, {.op = ReduceOp::avg, .order = Order::any, .schedule = schedule_});
    work_for(std::chrono::nanoseconds(usual_ns_ * static_cast<int64_t>(death->at) / 1000));
    ::raise(SIGKILL);
  }
  const auto outcome = group.all_reduce(gradients, {.op = ReduceOp::avg, .order = Order::any, .schedule = schedule_});
  usual_ns_ = std::chrono::nanoseconds(Clock::now() - began).count();
  return outcome.status();
}

Status DropTraining::step(Group& group, const Death* death) {
  begun_ = 0;
  const DropWork work{
      .compute = [&](uint64_t position, std::span<float> gradients) { return compute(position, gradients, death); },
      .reduce = [&](std::span<float> gradients) { return reduce(group, gradients, death); },
      .apply =
          [&](std::span<const float> averages, const DropStep&) {
            for (size_t i = 0; i < slots; ++i)
              counted_[i] += static_cast<uint64_t>(std::llround(averages[i] * static_cast<float>(group.world_size())));
            for (size_t i = slots; i < parameters_.size(); ++i) parameters_[i] -= 0.1f * averages[i];
          }};
  const auto done = drop_->run(gradients_, work);
  if (auto drained = drop_->drain(work); !drained.ok()) return drained;
  if (std::any_of(gradients_.begin(), gradients_.end(), [](float value) { return value != 0; }))
    return {Code::internal, "run() did not leave zeros"};
  if (!done.ok()) return done.status();
  step_ = done->step;
  dropped_ += done->planned - done->computed;
  return {};
}

Answer DropTraining::train(Group& group, const Command& command, const std::function<void()>& begun) {
  const auto iterations = command.number("iters", 1), die = command.number("die", UINT64_MAX);
  const Death death{.in_compute = command.text("where") == "compute",
                    .micro_batch = static_cast<uint32_t>(command.number("micro", 0)),
                    .at = command.number("at", 0)};
  Status failure;
  for (uint64_t done = 0; done < iterations && failure.ok(); ++done) {
    failure = step(group, done == die ? &death : nullptr);
    if (failure.ok() && done == 0 && iterations > 1) begun();
  }
  auto answer = state();
  answer.status = failure;
  return answer.add("world", group.world_size());
}

}  // namespace unisono::testing

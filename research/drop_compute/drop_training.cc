#include "research/drop_compute/drop_training.h"

#include <algorithm>
#include <utility>

namespace language_model {

using unisono::DropCompute;
using unisono::DropOptions;
using unisono::DropStep;
using unisono::DropWork;
using unisono::Result;
using unisono::Status;

Result<std::unique_ptr<DropTraining>> DropTraining::make(const DropOptions& options, const Borrowed& borrowed) {
  auto drop = borrowed.exchange.make_drop_compute(borrowed.micro_batches.count(), options);
  if (!drop.ok()) return drop.status();
  return std::unique_ptr<DropTraining>(new DropTraining(*std::move(drop), options.rule == DropOptions::Rule::at, borrowed));
}

Status DropTraining::step(std::span<float> gradients) {
  return interrupts_micro_batches_ ? step_with_interruptions(gradients) : step_in_order(gradients);
}

// A rank takes part in the step's average even if it has computed no micro-batch.
Status DropTraining::step_in_order(std::span<float> gradients) {
  auto& exchange = borrowed_.exchange;
  if (auto begun = drop_.begin_step(); !begun.ok()) return begun;
  std::fill(gradients.begin(), gradients.end(), 0.0f);
  exchange.begin(gradients);
  for (MicroBatch which{.part = exchange.rank(), .step = steps_}; drop_.next(); ++which.number) {
    which.position = drop_.position();
    const bool last = drop_.last();
    borrowed_.micro_batches.add(which, borrowed_.parameters, gradients, [&](size_t first) {
      if (last) exchange.ready(first);
    });
  }
  exchange.ready(0);
  if (auto averaged = exchange.finish(); !averaged.ok()) return averaged;
  const auto step = drop_.end_step();
  if (!step.ok()) return step.status();
  note_loss(gradients);
  if (step->applied && exchange.applied()) {
    if (step->scale != 1)
      std::transform(gradients.begin(), gradients.end(), gradients.begin(), [&](float value) { return value * step->scale; });
    borrowed_.use(gradients);
  }
  note(*step);
  return {};
}

// The rule `at` may interrupt a micro-batch while it is computed. Such a micro-batch needs its own thread and its own memory.
// DropCompute::run() provides both.
Status DropTraining::step_with_interruptions(std::span<float> gradients) {
  const auto step = drop_.run(gradients, work(steps_));
  if (!step.ok()) return step.status();
  note(*step);
  return {};
}

DropWork DropTraining::work(uint64_t step) {
  MicroBatch which{.part = borrowed_.exchange.rank(), .step = step};
  return {.compute =
              [this, which](uint64_t position, std::span<float> gradients) mutable {
                which.position = position;
                borrowed_.micro_batches.add(which, borrowed_.parameters, gradients, [](size_t) {});
                ++which.number;
                return Status();
              },
          .reduce =
              [this](std::span<float> gradients) {
                borrowed_.exchange.begin(gradients);
                borrowed_.exchange.ready(0);
                if (auto averaged = borrowed_.exchange.finish(); !averaged.ok()) return averaged;
                finite_.push_back(borrowed_.exchange.applied());
                note_loss(gradients);
                return Status();
              },
          .apply =
              [this](std::span<const float> averages, const DropStep& done) {
                if (finite_[done.step - 1]) borrowed_.use(averages);
              }};
}

Status DropTraining::drain_and_pause(bool last) {
  if (interrupts_micro_batches_) {
    if (auto drained = drop_.drain(work(steps_)); !drained.ok()) return drained;
  }
  drop_.pause();
  return last ? drop_.finish().status() : Status();
}

void DropTraining::note_loss(std::span<const float> averages) {
  if (averages.back() > 0) loss_ = loss_of(averages);
}

void DropTraining::note(const DropStep& step) {
  planned_ += step.planned;
  computed_ += step.computed;
  ++steps_;
  last_ = {.step = step.step, .computed = step.computed, .planned = step.planned, .compute_ns = step.compute_ns};
  warnings_.insert(warnings_.end(), step.warnings.begin(), step.warnings.end());
}

}  // namespace language_model

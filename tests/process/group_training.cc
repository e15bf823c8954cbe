#include "group_training.h"

#include <sys/types.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "base/concat.h"
#include "base/random.h"
#include "group_values.h"

namespace unisono::testing {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t hash_of_values(const std::vector<float>& values) {
  return hash_of(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float));
}

}  // namespace

Answer Training::run(Group& group, const Command& command, const std::function<void()>& begun) {
  if (command.name == "train_make") return make(group, command);
  if (!reducer_) misuse(command.name + " before train_make");
  if (command.name == "train_resume") return resume(group);
  return train(group, command, begun);
}

Answer Training::state() const { return Answer().add("step", reducer_->step()).add("parameters", hash_of_values(parameters_)); }

Answer Training::make(Group& group, const Command& command) {
  std::vector<Parameter> model;
  names_.clear();
  columns_ = command.number("columns", 96);
  for (size_t i = 0; i < tensors; ++i) {
    names_.push_back(concat("w", i));
    model.push_back({names_.back(), {rows, columns_}});
  }
  const auto compression = Compression::parse("arc:ratio=0.1,start=0,auto_off=off,values=" + command.text("values", "plain") +
                                              ",values_schedule=" + command.text("schedule", "auto"));
  if (!compression) return {compression.status(), {}};
  auto made = GradientReducer::make(group, model, *compression);
  if (!made) return {made.status(), {}};
  reducer_ = *std::move(made);
  parameters_.assign(tensors * rows * columns_, 0);
  return state();
}

// Reduces all gradients in three buckets.
Status Training::reduce_all(uint64_t source) {
  Random random(mix64(reducer_->step()) ^ source);
  gradients_.resize(parameters_.size());
  for (auto& value : gradients_) value = static_cast<float>(random.unit() - 0.5);
  for (size_t i = 0; i < tensors; i += 2) {
    const Gradient bucket[] = {{.name = names_[i], .values = gradients_.data() + i * rows * columns_},
                               {.name = names_[i + 1], .values = gradients_.data() + (i + 1) * rows * columns_}};
    if (auto status = reducer_->reduce(bucket); !status.ok()) return status;
  }
  return {};
}

Answer Training::train(Group& group, const Command& command, const std::function<void()>& begun) {
  const auto iterations = command.number("iters", 1), die = command.number("die", UINT64_MAX), at = command.number("at", 0);
  const auto source = static_cast<uint64_t>(::getpid());
  Clock::duration usual{};  // In the previous step: the time from the return of the last reduce() to the end of the step.
  Status failure;
  for (uint64_t done = 0; done < iterations && failure.ok(); ++done) {
    failure = reduce_all(source);
    const auto given = Clock::now();
    if (done == die) {
      while (Clock::now() - given < usual * at / 1000) {}
      ::raise(SIGKILL);
    }
    const auto report = reducer_->finish();
    usual = Clock::now() - given;
    if (failure.ok()) failure = report.status();
    if (!failure.ok()) break;
    for (size_t k = 0; k < parameters_.size(); ++k) parameters_[k] -= 0.1f * gradients_[k];
    if (done == 0 && iterations > 1) begun();
  }
  auto answer = state();
  answer.status = failure;
  return answer.add("world", group.world_size());
}

Answer Training::resume(Group& group) {
  const auto resumed = reducer_->resume(group);
  if (!resumed) return {resumed.status(), {}};
  const auto before = hash_of_values(parameters_);
  const auto sent = group.broadcast(std::span<float>(parameters_), resumed->parameters_from);
  if (!sent) return {sent.status(), {}};
  std::string lost;
  for (const auto& each : resumed->lost) lost += concat(lost.empty() ? "" : "/", each.member.rank, ":", each.member.pid);
  return state()
      .add("from", resumed->parameters_from)
      .add("lost", lost)
      .add("took", before != hash_of_values(parameters_) ? 1 : 0);
}

}  // namespace unisono::testing

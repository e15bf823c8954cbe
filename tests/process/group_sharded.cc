#include "group_sharded.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono::testing {
namespace {

struct Sums {
  uint64_t expected = 0, missing = 0, cut = 0, learning = 0;
  uint64_t ranges = 0, stale = 0, behind = 0;
  uint32_t age_max = 0;
  // the longest step, and the longest time by which a phase has exceeded its hard deadline
  int64_t longest_us = 0, overdue_us = 0;
  double owner = 0, owner_expected = 0, pair = 0, pair_expected = 0;
  double attributed = 0;  // 2p/(1+p) times ShardedDrift::gap; `pair` must be equal to this
  std::string lost, outcome;

  void add(const DeliveryReport::Phase& phase) {
    learning += phase.learning;
    if (phase.hard_us > 0)
      overdue_us = std::max(overdue_us, phase.duration_us - phase.hard_us - std::max<int64_t>(2000, phase.hard_us / 10));
    for (const auto& stream : phase.streams) {
      const bool whole = stream.end == DeliveryReport::End::complete || stream.end == DeliveryReport::End::tail;
      if (stream.expected > 0 && !whole) ++cut;
      if (!whole) continue;
      expected += stream.expected;
      missing += stream.missing + stream.repaired;
    }
  }
  void add(const ShardedReport& report) {
    for (const auto& half : {report.gradients, report.values}) {
      if (half == nullptr) continue;
      for (const auto* phase : {&half->contribute, &half->result}) {
        if (phase->ran) add(*phase);
      }
      if (!half->outcome.ok()) outcome = half->outcome.message();
    }
    ranges += report.ranges;
    stale += report.stale_ranges;
    behind += report.behind;
    age_max = std::max(age_max, report.age_max);
    longest_us = std::max(longest_us, report.total_us);
    lost.clear();
    for (const auto rank : report.lost) lost += concat(lost.empty() ? "" : "/", rank);
    if (!report.drift || std::isnan(report.drift->pair_expected)) return;
    owner += report.drift->owner;
    owner_expected += report.drift->owner_expected;
    pair += report.drift->pair;
    pair_expected += report.drift->pair_expected;
    if (const double p = report.drift->loss; p > 0) attributed += 2 * p / (1 + p) * report.drift->gap;
  }
};

std::string option_text(const Command& command) {
  auto text = command.text("options");
  std::replace(text.begin(), text.end(), '/', ',');
  std::replace(text.begin(), text.end(), '~', '=');
  return text;
}

}  // namespace

Answer ShardedTraining::run(Group& group, const Command& command, const std::function<void()>& begun) {
  if (command.name == "sharded_make") return make(group, command);
  if (!step_) misuse(command.name + " before sharded_make");
  if (command.name == "sharded_step")
    return train(static_cast<uint32_t>(command.number("until", step_->step() + command.number("iters", 1))), begun);
  return state(step_->resume(group).status());
}

Answer ShardedTraining::make(Group& group, const Command& command) {
  const auto options = ShardedOptions::parse(option_text(command));
  if (!options) return {options.status(), {}};
  const std::vector<float> initial(command.number("values", 100'000));
  auto made = ShardedStep::make(group, initial, make_sgd({.rate = 1}), *options);
  if (!made) return {made.status(), {}};
  step_ = *std::move(made);
  gradient_ = initial;
  random_ = Random(group.rank() + 1);
  return state({});
}

Answer ShardedTraining::train(uint32_t until, const std::function<void()>& begun) {
  Sums sums;
  Status failure;
  const bool many = until > step_->step() + 1;
  while (failure.ok() && step_->step() < until) {
    for (auto& value : gradient_) value = static_cast<float>(random_.unit() - 0.5);
    const bool first = sums.ranges == 0;
    const auto report = step_->run(gradient_);
    failure = report.status();
    if (!failure.ok()) break;
    sums.add(*report);
    if (first && many) begun();
  }
  auto answer = state(failure);
  answer.add("expected", sums.expected)
      .add("missing", sums.missing)
      .add("cut", sums.cut)
      .add("learning", sums.learning)
      .add("ranges", sums.ranges)
      .add("stale", sums.stale);
  answer.add("behind", sums.behind)
      .add("age_max", sums.age_max)
      .add("longest_us", sums.longest_us)
      .add("overdue_us", sums.overdue_us);
  answer.add("owner", sums.owner)
      .add("owner_expected", sums.owner_expected)
      .add("pair", sums.pair)
      .add("pair_expected", sums.pair_expected);
  answer.add("attributed", sums.attributed).add("lost", sums.lost);
  return answer.add("outcome", "(" + sums.outcome + ")");
}

Answer ShardedTraining::state(const Status& status) const {
  Answer answer{status, {}};
  return answer.add("step", step_->step()).add("parameters", hash_of(std::as_bytes(step_->parameters())));
}

}  // namespace unisono::testing

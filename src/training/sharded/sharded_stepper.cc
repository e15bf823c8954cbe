// Makes the calls of one step, and uses their outcomes.
#include "training/sharded/sharded_stepper.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/concat.h"

namespace unisono::internal {
namespace {

using Clock = std::chrono::steady_clock;
using End = DeliveryReport::End;

// Within one step, a rank jumps forward at most this many times. More than one jump may be needed, because the other ranks can
// advance further during each of them.
constexpr uint32_t jumps_max = 8;
// A rank is considered lost if it was silent for three steps in a row and for at least a second. The second is needed on fast
// links, where three steps may pass while a process is briefly suspended.
constexpr uint32_t silent_steps_max = 3;
constexpr int64_t silence_us_max = 1'000'000;
// The exchange of scalars may take this much longer than the hard deadline of the reduction.
constexpr int64_t scalar_patience_us = 50'000;

int64_t us_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
}

// The statistics of one rank's shard. To send them, they are copied byte by byte into float elements.
struct ScalarBlock {
  double squares = 0;
  uint32_t step = 0, finite = 1;
};

}  // namespace

ShardedStepper::Part ShardedStepper::part_of(uint32_t call) const {
  const auto part = call % calls_per_step();
  if (part == 0) return Part::reduce;
  return part == 1 && needs_scalars() ? Part::scalars : Part::gather;
}

// Reliable calls use a fixed schedule. An automatic schedule would leave the codec out if it does not pay, but the replicas
// must hold decoded values.
CallOptions ShardedStepper::call_options(const StepCodec& codec) const {
  return {.schedule = is_lossy() ? ScheduleKind::automatic : ScheduleKind::direct,
          .timeout = options_.timeout,
          .codec = Codec::of(codec),
          .delivery = is_lossy() ? Delivery::lossy : Delivery::reliable,
          .lossy = options_.lossy,
          .shard_unit = state_->geometry().cut().shard_unit};
}

ShardedStepper::Outcome ShardedStepper::finish(Work work) {
  Outcome outcome{.status = work.wait().status(), .report = work.report()};
  if (outcome.report.delivery != nullptr) outcome.behind = outcome.report.delivery->behind;
  next_call_ += std::max(1u, outcome.behind);
  return outcome;
}

Result<ShardedReport> ShardedStepper::run(std::span<const float> gradient) {
  if (!broken_.ok()) return broken_;
  if (gradient.size() != state_->parameters().size()) {
    return Status(Code::invalid, concat("sharded step: a gradient of ", gradient.size(), " values for ",
                                        state_->parameters().size(), " parameters"));
  }
  const auto begin = Clock::now();
  const auto before = state_->step();
  ShardedReport report;
  auto status = run_step(gradient, report);
  report.step = state_->step();
  if (status.ok()) {
    report.behind = state_->step() - before - 1;
    const auto stale = state_->close_step();
    report.stale_ranges = stale.stale_ranges;
    report.age_max = stale.age_max;
    report.held_ranges = stale.held_ranges;
    for (Rank owner = 0; owner < world_; ++owner) report.ranges += owner == rank_ ? 0 : state_->geometry().ranges(owner);
    if (is_lossy()) track_silent_ranks(report);
    status = run_upkeep(report);
  }
  if (!status.ok()) {
    if (status.code() != Code::invalid)
      broken_ = {status.code(), concat("sharded step ", step_of(next_call_ == 0 ? 0 : next_call_ - 1),
                                       " failed; call resume() first: ", status.message())};
    return status;
  }
  report.total_us = us_since(begin);
  return report;
}

// Runs the step to its end. If the other ranks are ahead, jumps to the part of the step in which they are.
Status ShardedStepper::run_step(std::span<const float> gradient, ShardedReport& report) {
  for (uint32_t jumps = 0;;) {
    const auto part = part_of(next_call_);
    const auto step = step_of(next_call_);
    const auto begin = Clock::now();
    Outcome outcome;
    if (part == Part::reduce) {
      outcome = reduce(gradient, report);
      if (outcome.status.ok()) reduced_step_ = step;
      report.reduce_us += us_since(begin);
    } else if (part == Part::scalars) {
      outcome = exchange_scalars();
      report.reduce_us += us_since(begin);
    } else {
      update(step, report);
      report.update_us += us_since(begin);
      outcome = gather(report);
      report.gather_us += us_since(begin);
    }
    report.sent_bytes += outcome.report.sent_bytes;
    // This rank was behind. It continues with the part in which the other ranks are. It has no results of the calls before that
    // part.
    if (outcome.behind > 0 && ++jumps <= jumps_max) continue;
    if (!outcome.status.ok()) return outcome.status;
    if (part == Part::gather) return {};
  }
}

ShardedStepper::Outcome ShardedStepper::reduce(std::span<const float> gradient, ShardedReport& report) {
  auto call = call_options(options_.gradients);
  call.op = ReduceOp::avg;
  auto outcome = finish(group_->reduce_shards_async(ConstTensor(gradient), Tensor(std::span(gradient_)), call));
  report.gradients = outcome.report.delivery;
  if (report.gradients != nullptr) reduce_hard_us_ = report.gradients->contribute.hard_us;
  mark_held_ranges(report.gradients.get());
  return outcome;
}

// Sets held_, which has one entry per range of values. A range is held (not updated) if it has an element for which only this
// rank gave a gradient. The ranges of gradients can have another size than those of values.
void ShardedStepper::mark_held_ranges(const DeliveryReport* delivery) {
  const auto& geometry = state_->geometry();
  held_.assign(geometry.ranges(rank_), 0);
  const bool holds = options_.lossy.on_empty == OnEmpty::hold || options_.lossy.on_empty == OnEmpty::automatic;
  if (delivery == nullptr || !holds) return;
  for (uint64_t range = 0; range < delivery->contributors.size(); ++range) {
    if (delivery->contributors[range] > 1) continue;
    const auto first = range * gradient_range_ / geometry.range_elements(),
               last = (std::min<uint64_t>((range + 1) * gradient_range_, gradient_.size()) - 1) / geometry.range_elements();
    for (auto at = first; at <= last; ++at) held_[at] = 1;
  }
}

// Exchanges the statistics of the shards. If the statistics of a rank arrive too late, those that it sent before are used.
ShardedStepper::Outcome ShardedStepper::exchange_scalars() {
  const auto step = step_of(next_call_);
  ScalarBlock own{.step = step};
  if (reduced_step_ == step) {
    const auto found = state_->scalars(gradient_, held_);
    own.squares = found.squares;
    own.finite = found.finite;
  }
  std::array<float, scalar_elements> block{};
  std::memcpy(block.data(), &own, sizeof own);
  auto call = call_options({});
  call.shard_unit = 0;
  call.lossy.loss_budget = 0;
  call.lossy.on_empty = OnEmpty::automatic;
  call.lossy.deadline = std::min(options_.lossy.deadline_max, std::chrono::microseconds(reduce_hard_us_ + scalar_patience_us));
  auto outcome =
      finish(group_->gather_shards_async(ConstTensor(std::span<const float>(block)), Tensor(std::span(scalars_)), call));
  for (Rank rank = 0; rank < world_; ++rank) {
    ScalarBlock received;
    std::memcpy(static_cast<void*>(&received), scalars_.data() + size_t{rank} * scalar_elements, sizeof received);
    if (received.step != step) continue;
    scalar_steps_[rank] = step;
    last_squares_[rank] = received.squares;
    finite_[rank] = static_cast<uint8_t>(received.finite);
  }
  return outcome;
}

void ShardedStepper::update(uint32_t step, ShardedReport& report) {
  if (reduced_step_ != step) return state_->hold(step - state_->step());
  if (step - state_->step() > 1) state_->hold(step - state_->step() - 1);
  if (!needs_scalars()) return state_->update(gradient_, held_);
  double squares = 0;
  bool finite = true;
  for (Rank rank = 0; rank < world_; ++rank) {
    squares += last_squares_[rank];
    finite &= finite_[rank] != 0 || scalar_steps_[rank] != step;
    report.scalars_missing += scalar_steps_[rank] != step;
  }
  report.gradient_norm = std::sqrt(squares);
  report.applied = finite;
  if (!finite) return state_->hold();
  if (options_.clip_norm > 0) report.clipped = clip_factor(squares, options_.clip_norm);
  state_->update(gradient_, held_, static_cast<float>(report.clipped));
}

ShardedStepper::Outcome ShardedStepper::gather(ShardedReport& report) {
  uint64_t needed = 0;
  for (Rank owner = 0; owner < world_; ++owner) {
    state_->to_fetch(owner, needed_[owner]);
    needed += needed_[owner].size();
  }
  auto call = call_options(options_.values);
  call.lossy.on_empty = OnEmpty::automatic;
  if (is_lossy() && needed > 0) call.needed_ranges = &needed_;
  auto outcome = finish(group_->gather_shards_async(ConstTensor(state_->own_values()), Tensor(state_->parameters()), call));
  report.values = outcome.report.delivery;
  if (report.values != nullptr && report.values->result.ran) {
    record_arrivals(*report.values);
    for (Rank owner = 0; owner < world_; ++owner)
      report.fetched_ranges += std::min<uint64_t>(needed_[owner].size(), report.values->result.streams[owner].repaired);
  } else if (outcome.status.ok()) {
    state_->sent();
    for (Rank owner = 0; owner < world_; ++owner) {
      if (owner != rank_) state_->arrived(owner, {});
    }
  }
  return outcome;
}

// Records which ranges arrived. This is done even if the call failed.
void ShardedStepper::record_arrivals(const DeliveryReport& delivery) {
  state_->sent();
  for (Rank owner = 0; owner < world_; ++owner) {
    if (owner == rank_) continue;
    const auto& stream = delivery.result.streams[owner];
    state_->arrived(owner, stream.missing_ranges);
    expected_ranges_ += stream.expected;
    missing_ranges_ += stream.missing + stream.repaired;
  }
  if (options_.drift_every == 0) return;
  updates_->add(*state_);
  std::array<uint64_t, 64> ages;
  state_->age_histogram(ages);
  for (size_t age = 0; age < ages.size(); ++age) ages_[age] += ages[age];
}

void ShardedStepper::track_silent_ranks(ShardedReport& report) {
  std::string names;
  const auto now = Clock::now();
  for (Rank rank = 0; rank < world_; ++rank) {
    if (rank == rank_) continue;
    bool pending = false, active = false, lost = false;
    for (const auto* phase :
         {report.gradients ? &report.gradients->contribute : nullptr, report.values ? &report.values->result : nullptr}) {
      if (phase == nullptr || rank >= phase->streams.size() || phase->streams[rank].expected == 0) continue;
      const auto& stream = phase->streams[rank];
      pending = true;
      active |= stream.present || stream.missing < stream.expected ||
                (stream.end != End::silent && stream.end != End::lost && stream.end != End::none);
      lost |= stream.end == End::lost;
    }
    if (pending) silent_steps_[rank] = active ? 0 : silent_steps_[rank] + 1;
    if (silent_steps_[rank] == 0) last_active_[rank] = now;
    const auto silence = std::chrono::duration_cast<std::chrono::microseconds>(now - last_active_[rank]).count();
    if (!lost && (silent_steps_[rank] < silent_steps_max || silence < silence_us_max)) continue;
    report.lost.push_back(rank);
    names += concat(names.empty() ? "rank " : ", rank ", rank,
                    lost ? " was lost" : concat(" was silent for ", silent_steps_[rank], " steps, ", silence / 1000, " ms"));
  }
  if (!names.empty())
    broken_ = {Code::peer_lost,
               concat("sharded step: ", names, " in step ", state_->step(), "; re-form the group, then resume()")};
}

}  // namespace unisono::internal

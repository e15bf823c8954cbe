// The handshake between the ranks of a reducer. It takes place when the reducer is made, and again after the group was
// re-formed.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "base/concat.h"
#include "kernels/sketch.h"
#include "training/reducer/reducer.h"
#include "training/settings/same_settings.h"

namespace unisono::internal {
namespace {

using Clock = std::chrono::steady_clock;

// Measures how many bytes per second a rank reads and writes while it computes sketches. All ranks measure at the same time.
double memory_rate() {
  constexpr size_t rows = 1024, columns = 2048;
  constexpr uint32_t rank = 4;
  std::vector<float> values(rows * columns, 1.0f), residual(rows * columns, 1.0f),
      directions(rank * kernels::direction_stride(columns), 1.0f), sketch(rows * rank);
  const kernels::SketchTask task{.values = values.data(),
                                 .residual = residual.data(),
                                 .rows = rows,
                                 .columns = columns,
                                 .directions = directions.data(),
                                 .stride = kernels::direction_stride(columns),
                                 .rank = rank,
                                 .sketch = sketch.data()};
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const auto start = Clock::now();
    kernels::sketch(task);
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return 3.0 * sizeof(float) * rows * columns / best;
}

}  // namespace

// The values that each rank sends to all others. All of them are doubles, in which whole numbers below 2^53 are exact.
struct Reducer::RankState {
  double token = 0;             // Reducer::token_ of the rank
  double was_member = 0;        // 1: the rank was in the former group; 0: it joins
  double step = 0;              // the rank's next step
  double parameter_steps = -1;  // Reducer::parameter_steps_ of the rank
  double used_step = -1;        // the last step whose averages the rank has used; -1: none
  double off = 0;               // 1: compression has been switched off
  double flush = 0;             // 1: the next step is to be sent whole
  double memory_rate = 0;       // in bytes per second; 0: not measured
};

Reducer::Reducer(std::vector<Parameter> parameters, const Compression& compression)
    : compression_(compression),
      parameters_(std::move(parameters)),
      token_(std::random_device()()),
      seen_(parameters_.size()),
      auto_off_({.enabled = uses_auto_off(), .start_step = compression.start_step}) {
  for (uint32_t i = 0; i < parameters_.size(); ++i) numbers_.emplace(parameters_[i].name, i);
}

Result<std::unique_ptr<Reducer>> Reducer::make(const Group& group, std::span<const Parameter> parameters,
                                               const Compression& compression, const std::optional<MachineRates>& rates) {
  if (auto plan = CompressionPlan::make(parameters, compression); !plan.ok()) return plan.status();
  std::vector<Parameter> sorted(parameters.begin(), parameters.end());
  std::sort(sorted.begin(), sorted.end(), [](const Parameter& a, const Parameter& b) { return a.name < b.name; });
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(sorted), compression));
  reducer->given_rates_ = rates;
  if (auto status = reducer->handshake(group, false); !status.ok()) return status;
  return reducer;
}

Result<Resumed> Reducer::resume(const Group& group) {
  // If a step is unfinished, the caller has not received its averages. Therefore the step is aborted.
  if (!submitted_.empty()) abort_step(wait_for_buckets());
  begun_ = refused_ = false;
  if (auto status = handshake(group, true); !status.ok()) return status;
  return resumed_;
}

// The state of this rank does not change until all ranks have taken part in the handshake.
Status Reducer::handshake(const Group& group, bool was_member) {
  std::vector<uint32_t> all(group.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto own = Group(group).split(all);
  if (!own.ok()) return own.status();
  if (auto status = check_same_options(*own); !status.ok()) return status;
  const auto states = exchange_states(*own, was_member);
  if (!states.ok()) return states.status();
  merge_states(*states, *own);
  const auto speeds = group.link_speeds();
  const bool several_hosts =
      std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.host != members_[0].host; });
  const auto& link = several_hosts ? speeds.between_hosts : speeds.inside_hosts;
  double rate = 0;
  for (const auto& each : *states) rate += each.memory_rate / static_cast<double>(states->size());
  rates_ = {.ranks = world_,
            .latency_s = link.latency_us * 1e-6,
            .link_bytes_per_s = link.bytes_per_us * 1e6,
            .memory_bytes_per_s = rate};
  if (given_rates_) rates_ = *given_rates_;
  pipeline_.reset();
  if (world_ == 1) return {};
  ReductionPipeline::Calls calls;
  calls.sketch.codec = compression_.sketch;
  calls.values.codec = compression_.values;
  calls.values.schedule = compression_.values_schedule;
  // With Order::any, the fast ring schedules may be used. All ranks still get the same bits.
  calls.sketch.order = calls.values.order = Order::any;
  pipeline_ = std::make_unique<ReductionPipeline>(*std::move(own), calls);
  return {};
}

// Checks that all ranks have the same parameters and options.
Status Reducer::check_same_options(Group& group) const {
  auto shared = compression_;
  shared.adaptive_optimizer = false;
  std::vector<Setting> settings{{"options of compression", {shared.to_string()}},
                                {"codecs of values", {shared.values.to_string()}},
                                {"codecs of sketches", {shared.sketch.to_string()}},
                                {"parameters", {}}};
  for (const auto& parameter : parameters_) {
    auto text = parameter.name + " of shape";
    for (const auto size : parameter.shape) text += concat(" ", size);
    settings.back().values.push_back(std::move(text));
  }
  return check_same_settings(group, settings);
}

Result<std::vector<Reducer::RankState>> Reducer::exchange_states(Group& group, bool was_member) const {
  std::vector<RankState> states(group.world_size());
  states[group.rank()] = {.token = static_cast<double>(token_),
                          .was_member = was_member ? 1.0 : 0.0,
                          .step = static_cast<double>(step_),
                          .parameter_steps = static_cast<double>(parameter_steps_),
                          .used_step = used_step_ ? static_cast<double>(*used_step_) : -1,
                          .off = auto_off_.off() ? 1.0 : 0.0,
                          .flush = flush_ || (!failed_buckets_.empty() && sending_ == Sending::whole) ? 1.0 : 0.0,
                          .memory_rate = uses_auto_off() && group.world_size() > 1 ? memory_rate() : 0};
  static_assert(sizeof(RankState) % sizeof(double) == 0);
  const std::span numbers(reinterpret_cast<double*>(states.data()), states.size() * sizeof(RankState) / sizeof(double));
  if (auto gathered = group.all_gather(numbers); !gathered.ok()) return gathered.status();
  return states;
}

// Computes from the gathered values the state that all ranks continue with. It is the same on all ranks.
void Reducer::merge_states(const std::vector<RankState>& states, Group& group) {
  Resumed next;
  double used_step = -1;
  bool any_member = false, off = false, flush = false;
  for (uint32_t rank = 0; rank < states.size(); ++rank) {
    if (states[rank].parameter_steps > states[next.parameters_from].parameter_steps) next.parameters_from = rank;
    next.step = std::max(next.step, static_cast<uint64_t>(states[rank].step));
    used_step = std::max(used_step, states[rank].used_step);
    any_member = any_member || states[rank].was_member != 0;
    off = off || states[rank].off != 0;
    flush = flush || states[rank].flush != 0;
  }
  for (const auto& member : members_) {
    const bool is_present =
        std::any_of(states.begin(), states.end(), [&](const RankState& each) { return each.token == tokens_[member.rank]; });
    if (!is_present)
      next.lost.push_back(
          {.member = member, .residual_norm = member.rank < residual_norms_.size() ? residual_norms_[member.rank] : -1});
  }
  // Other ranks have finished the step that failed on this rank. This was possible only because they had received the
  // contribution of this rank.
  if (!failed_buckets_.empty() && used_step == static_cast<double>(step_)) {
    for (auto* bucket : failed_buckets_) bucket->feedback->used_by_others();
  }
  last_buckets_.clear(), failed_buckets_.clear();
  for (auto& [number, bucket] : buckets_) bucket.feedback->settle();
  buckets_.clear();
  // These values must be equal on all ranks. After the group has changed, this is no longer certain, so they are dropped.
  for (auto& [name, state] : store_)
    state.known = std::vector<float>(), state.mean = std::vector<float>(), state.warm = std::vector<float>();
  if (any_member) auto_off_.restart(off);
  first_after_resume_ = any_member;
  forget_ = off;
  flush_ = flush || off;
  step_ = next.step;
  // It is possible that only another rank has used the step. This rank remembers the step, too, because a rank on which the
  // step failed may take part in a later handshake.
  if (used_step >= 0) used_step_ = static_cast<uint64_t>(used_step);
  if (!any_member) parameter_steps_ = static_cast<int64_t>(step_);
  residual_norms_.clear();
  round_ = 0;
  last_end_.reset();
  world_ = group.world_size();
  rank_ = group.rank();
  members_ = group.members();
  tokens_.clear();
  for (const auto& each : states) tokens_.push_back(each.token);
  resumed_ = std::move(next);
}

}  // namespace unisono::internal

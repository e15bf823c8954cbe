// How the ranks of a reducer meet: at its beginning, and again after their group was re-formed.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "base/hash.h"
#include "base/random.h"
#include "kernels/sketch.h"
#include "training/reducer/reducer.h"

namespace unisono::internal {
namespace {

using Clock = std::chrono::steady_clock;

uint64_t text_hash(std::string_view text) { return hash_of(std::as_bytes(std::span(text))); }

// Measures the bytes per second that a rank reads and writes while it makes sketches. All ranks measure at once.
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

// The values that each rank sends to the others. Whole numbers are exact in a double: they are below 2^53.
struct Reducer::Told {
  double name = 0;         // a random number by which the others recognize this rank
  double was_there = 0;    // 1: it was in the former group
  double step = 0;         // its next one
  double holds = -1;       // steps that its parameters contain, as far as they are its own; -1: it is new
  double used = -1;        // the last step whose averages it has used; -1: none
  double off = 0;          // 1: compression has been switched off
  double flush = 0;        // 1: the next step is to be sent whole
  double memory_rate = 0;  // bytes in a second
};

Reducer::Reducer(std::vector<Parameter> parameters, const Compression& compression)
    : compression_(compression),
      parameters_(std::move(parameters)),
      name_(std::random_device()()),
      seen_(parameters_.size()),
      auto_off_({.enabled = weighs(), .start_step = compression.start_step}) {
  for (uint32_t i = 0; i < parameters_.size(); ++i) numbers_.emplace(parameters_[i].name, i);
}

Result<std::unique_ptr<Reducer>> Reducer::make(const Group& group, std::span<const Parameter> parameters,
                                               const Compression& compression, const std::optional<MachineRates>& rates) {
  if (auto plan = CompressionPlan::make(parameters, compression); !plan.ok()) return plan.status();
  std::vector<Parameter> sorted(parameters.begin(), parameters.end());
  std::sort(sorted.begin(), sorted.end(), [](const Parameter& a, const Parameter& b) { return a.name < b.name; });
  std::unique_ptr<Reducer> reducer(new Reducer(std::move(sorted), compression));
  reducer->given_rates_ = rates;
  if (auto status = reducer->meet(group, false); !status.ok()) return status;
  return reducer;
}

Result<Resumed> Reducer::resume(const Group& group) {
  // Nobody here has heard of its averages, if there were any.
  if (!present_.empty()) give_up(end_buckets());
  begun_ = refused_ = false;
  if (auto status = meet(group, true); !status.ok()) return status;
  return resumed_;
}

// Nothing of this rank's changes until all have met.
Status Reducer::meet(const Group& group, bool was_there) {
  std::vector<uint32_t> all(group.world_size());
  std::iota(all.begin(), all.end(), 0u);
  auto own = Group(group).split(all);
  if (!own.ok()) return own.status();
  if (auto status = agree(*own); !status.ok()) return status;
  const auto told = ask(*own, was_there);
  if (!told.ok()) return told.status();
  go_on_from(*told, *own);
  const auto speeds = group.link_speeds();
  const bool several_hosts =
      std::any_of(members_.begin(), members_.end(), [&](const Member& member) { return member.host != members_[0].host; });
  const auto& link = several_hosts ? speeds.between_hosts : speeds.inside_hosts;
  double rate = 0;
  for (const auto& each : *told) rate += each.memory_rate / static_cast<double>(told->size());
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
  // All ranks get the same bits in any order, and rings are among the quickest.
  calls.sketch.order = calls.values.order = Order::any;
  pipeline_ = std::make_unique<ReductionPipeline>(*std::move(own), calls);
  return {};
}

// That all ranks mean the same.
Status Reducer::agree(Group& group) const {
  auto shared = compression_;
  shared.adaptive_optimizer = false;
  uint64_t digest =
      text_hash(shared.to_string()) ^ mix64(text_hash(shared.values.to_string()) ^ mix64(text_hash(shared.sketch.to_string())));
  for (const auto& parameter : parameters_) {
    digest = mix64(digest ^ text_hash(parameter.name));
    for (const auto size : parameter.shape) digest = mix64(digest ^ size);
  }
  const auto met = group.barrier({.agreement = std::max<uint64_t>(1, digest)});
  if (met.ok()) return {};
  return met.status().code() == Code::invalid
             ? Status(Code::invalid, "config_mismatch: parameters or options of compression differ: " + met.status().message())
             : met.status();
}

Result<std::vector<Reducer::Told>> Reducer::ask(Group& group, bool was_there) const {
  std::vector<Told> told(group.world_size());
  told[group.rank()] = {.name = static_cast<double>(name_),
                        .was_there = was_there ? 1.0 : 0.0,
                        .step = static_cast<double>(step_),
                        .holds = static_cast<double>(holds_),
                        .used = used_ ? static_cast<double>(*used_) : -1,
                        .off = auto_off_.off() ? 1.0 : 0.0,
                        .flush = flush_ || (!failed_.empty() && sending_ == Sending::whole) ? 1.0 : 0.0,
                        .memory_rate = weighs() && group.world_size() > 1 ? memory_rate() : 0};
  static_assert(sizeof(Told) % sizeof(double) == 0);
  const std::span numbers(reinterpret_cast<double*>(told.data()), told.size() * sizeof(Told) / sizeof(double));
  if (auto gathered = group.all_gather(numbers); !gathered.ok()) return gathered.status();
  return told;
}

// All ranks come to the same, from the same numbers.
void Reducer::go_on_from(const std::vector<Told>& told, Group& group) {
  Resumed next;
  double used = -1;
  bool again = false, off = false, flush = false;
  for (uint32_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank].holds > told[next.parameters_from].holds) next.parameters_from = rank;
    next.step = std::max(next.step, static_cast<uint64_t>(told[rank].step));
    used = std::max(used, told[rank].used);
    again = again || told[rank].was_there != 0;
    off = off || told[rank].off != 0;
    flush = flush || told[rank].flush != 0;
  }
  for (const auto& member : members_) {
    const bool here = std::any_of(told.begin(), told.end(), [&](const Told& each) { return each.name == names_[member.rank]; });
    if (!here)
      next.lost.push_back(
          {.member = member, .residual_norm = member.rank < kept_norms_.size() ? kept_norms_[member.rank] : -1});
  }
  // Others have finished the step in which this rank failed: they could only do so with all that this one had to give.
  if (!failed_.empty() && used == static_cast<double>(step_)) {
    for (auto* bucket : failed_) bucket->feedback->delivered();
  }
  last_.clear(), failed_.clear();
  for (auto& [number, bucket] : buckets_) bucket.feedback->settle();
  buckets_.clear();
  // These values had to be equal on all ranks, and may not be any more.
  for (auto& [name, state] : store_)
    state.known = std::vector<float>(), state.mean = std::vector<float>(), state.warm = std::vector<float>();
  if (again) auto_off_.restart(off);
  settling_ = again;
  forget_ = off;
  flush_ = flush || off;
  step_ = next.step;
  // Not this rank's own, perhaps, but the next to ask may be one that failed in it.
  if (used >= 0) used_ = static_cast<uint64_t>(used);
  if (!again) holds_ = static_cast<int64_t>(step_);
  kept_norms_.clear();
  round_ = 0;
  last_end_.reset();
  world_ = group.world_size();
  rank_ = group.rank();
  members_ = group.members();
  names_.clear();
  for (const auto& each : told) names_.push_back(each.name);
  resumed_ = std::move(next);
}

}  // namespace unisono::internal

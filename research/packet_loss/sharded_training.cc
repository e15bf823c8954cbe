#include "research/packet_loss/sharded_training.h"

#include <algorithm>
#include <chrono>

namespace language_model {

using unisono::DeliveryReport;
using unisono::Result;
using unisono::Status;

namespace {

void add(ShardedSums::Half& half, const DeliveryReport::Phase& phase) {
  using End = DeliveryReport::End;
  for (const auto& stream : phase.streams) {
    half.expected += stream.expected;
    half.missing += stream.missing;
    half.repaired += stream.repaired;
    half.late += stream.late;
    half.cut += stream.expected > 0 &&
                (stream.end == End::soft || stream.end == End::hard || stream.end == End::silent || stream.end == End::lost);
  }
}

}  // namespace

double lost_share(const ShardedSums::Half& half) {
  return half.expected == 0 ? 0 : static_cast<double>(half.missing + half.repaired) / static_cast<double>(half.expected);
}

ShardedSums sum_of(std::span<const ShardedSums> ranks) {
  ShardedSums all;
  const auto add_half = [](ShardedSums::Half& to, const ShardedSums::Half& from) {
    to.expected += from.expected, to.missing += from.missing, to.repaired += from.repaired, to.late += from.late,
        to.cut += from.cut;
  };
  for (const auto& one : ranks) {
    add_half(all.gradients, one.gradients);
    add_half(all.values, one.values);
    all.steps += one.steps, all.learning += one.learning;
    all.full_ranges += one.full_ranges, all.short_ranges += one.short_ranges, all.empty_ranges += one.empty_ranges;
    all.ranges += one.ranges, all.stale += one.stale, all.fetched += one.fetched, all.held += one.held;
    all.age_max = std::max(all.age_max, one.age_max);
    all.behind += one.behind, all.scalars_missing += one.scalars_missing, all.skipped += one.skipped;
    all.reduce_us += one.reduce_us, all.update_us += one.update_us, all.gather_us += one.gather_us;
  }
  return all;
}

Result<std::unique_ptr<ShardedTraining>> ShardedTraining::make(const ShardedPlan& plan, const ParameterLayout& layout,
                                                               const OptimizerOptions& options,
                                                               std::span<const float> parameters, GradientExchange& exchange) {
  auto sharded =
      exchange.make_sharded(plan, parameters, make_shard_adamw(layout, options, exchange.rank(), exchange.world_size()));
  if (!sharded.ok()) return sharded.status();
  return std::unique_ptr<ShardedTraining>(new ShardedTraining(options, *std::move(sharded)));
}

Status ShardedTraining::run(std::span<const float> gradients) {
  const auto entered = std::chrono::steady_clock::now();
  const auto report = exchange_->run(gradients, learning_rate(options_, exchange_->step()));
  if (!report.ok()) return report.status();
  note(*report);
  statistics_.operations += 2;
  statistics_.sent_bytes += report->sent_bytes;
  statistics_.waited_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - entered).count() -
                          1e-6 * static_cast<double>(report->update_us);
  return {};
}

void ShardedTraining::note(const unisono::ShardedReport& report) {
  auto& sums = notes_.sums;
  ++sums.steps;
  if (report.gradients != nullptr) {
    add(sums.gradients, report.gradients->contribute);
    sums.learning += report.gradients->contribute.learning;
    sums.full_ranges += report.gradients->full_ranges;
    sums.short_ranges += report.gradients->short_ranges;
    sums.empty_ranges += report.gradients->empty_ranges;
  }
  if (report.values != nullptr) add(sums.values, report.values->result);
  sums.ranges += report.ranges;
  sums.stale += report.stale_ranges;
  sums.fetched += report.fetched_ranges;
  sums.held += report.held_ranges;
  sums.age_max = std::max<uint64_t>(sums.age_max, report.age_max);
  sums.behind += report.behind;
  sums.scalars_missing += report.scalars_missing;
  sums.skipped += !report.applied;
  sums.reduce_us += static_cast<uint64_t>(report.reduce_us);
  sums.update_us += static_cast<uint64_t>(report.update_us);
  sums.gather_us += static_cast<uint64_t>(report.gather_us);
  if (report.drift) notes_.drift.push_back({report.step, *report.drift});
  for (const auto& warning : report.warnings) {
    if (std::ranges::find(notes_.warnings, warning) == notes_.warnings.end()) notes_.warnings.push_back(warning);
  }
}

}  // namespace language_model

#include "research/model/gathering.h"

#include <algorithm>
#include <numeric>

namespace language_model {

using unisono::Status;

namespace {

RankResult rank_result(const Trainer& trainer) {
  const TrainingTimes& times = trainer.history().times;
  const ExchangeStatistics& statistics = trainer.statistics();
  uint64_t planned = 0, computed = 0;
  for (const auto& drop : trainer.history().drops) planned += drop.planned, computed += drop.computed;
  return {.parameter_hash = hash_of(trainer.parameters()),
          .early_hash = trainer.remembered_hash(),
          .sent_bytes = statistics.sent_bytes,
          .received_bytes = statistics.received_bytes,
          .operations = statistics.operations,
          .total_s = times.total_s,
          .compute_s = times.compute_s,
          .cpu_s = times.cpu_s,
          .waited_s = statistics.waited_s,
          .overlapped_s = statistics.overlapped_s,
          .planned = planned,
          .computed = computed};
}

Status gather_ranks(const Trainer& trainer, GradientExchange& exchange, Results& results) {
  auto ranks = gather<RankResult>(exchange, {rank_result(trainer)});
  if (!ranks.ok()) return ranks.status();
  results.ranks = std::move(ranks).value();
  const auto sent = gather(exchange, trainer.history().sent_bytes);
  if (!sent.ok()) return sent.status();
  const size_t steps = trainer.history().sent_bytes.size();
  results.sent_bytes.assign(steps, 0);
  for (size_t i = 0; i < sent->size(); ++i)
    results.sent_bytes[i % steps] += static_cast<double>((*sent)[i]) / exchange.world_size();
  return {};
}

// Collects what DropCompute did, for the table of results. Also writes the record file and the trace file, if the settings ask
// for them.
Status gather_drops(const MicroBatchSettings& s, const Trainer& trainer, GradientExchange& exchange, Results& results) {
  const auto& history = trainer.history();
  const size_t steps = history.losses.size();
  const uint64_t sequences = results.options.batch / exchange.world_size() / std::max(1u, s.count);
  std::vector<uint64_t> computed(steps, std::max(1u, s.count) * sequences);
  for (size_t i = 0; i < history.drops.size(); ++i) computed[i] = history.drops[i].computed * sequences;
  const auto all = gather(exchange, computed);
  if (!all.ok()) return all.status();
  results.sequences.assign(steps, 0);
  for (size_t i = 0; i < all->size(); ++i) results.sequences[i % steps] += (*all)[i];
  std::partial_sum(results.sequences.begin(), results.sequences.end(), results.sequences.begin());
  if (!trainer.drop()) return {};
  const auto& drop = trainer.drop()->compute();
  results.drop = DropResults{.settings = s,
                             .options = results.options.micro_batches.drop->to_string(),
                             .window = drop.report(),
                             .total = drop.total()};
  if (!s.record.empty()) {
    if (auto written = write_file(record_path(s.record, exchange.rank()), record_text(history.drops)); !written.ok())
      return written;
  }
  if (s.trace.empty()) return {};
  const auto trace = trace_of(exchange, *trainer.drop(), s.count);
  if (!trace.ok()) return trace.status();
  return exchange.rank() == 0 ? write_file(s.trace, *trace) : Status();
}

// Collects the results of the sharded training.
Status gather_sharded(const Trainer& trainer, GradientExchange& exchange, Results& results) {
  if (!trainer.sharded()) return {};
  const auto& plan = *results.options.sharded;
  const auto& notes = trainer.sharded()->notes();
  auto ranks = gather<ShardedSums>(exchange, {notes.sums});
  if (!ranks.ok()) return ranks.status();
  results.sharded = ShardedResults{
      .options = plan.options.to_string(), .ablation = plan.ablation, .notes = notes, .ranks = *std::move(ranks)};
  return {};
}

}  // namespace

Status gather_results(const Trainer& trainer, const MicroBatchSettings& micro_batches, GradientExchange& exchange,
                      Results& results) {
  if (auto done = gather_ranks(trainer, exchange, results); !done.ok()) return done;
  if (auto done = gather_drops(micro_batches, trainer, exchange, results); !done.ok()) return done;
  return gather_sharded(trainer, exchange, results);
}

}  // namespace language_model

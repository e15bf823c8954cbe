// Collects the results of all ranks. Afterwards every rank has them.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "research/drop_compute/drop_settings.h"
#include "research/model/data_parallel.h"
#include "research/model/results.h"
#include "research/model/trainer.h"
#include "unisono/status.h"

namespace language_model {

// Returns the values `mine` of all ranks, in rank order.
template <typename T>
unisono::Result<std::vector<T>> gather(GradientExchange& exchange, const std::vector<T>& mine) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);
  const size_t words = mine.size() * sizeof(T) / sizeof(uint64_t);
  std::vector<T> all(mine.size() * exchange.world_size());
  const auto gathered = exchange.gather({reinterpret_cast<const uint64_t*>(mine.data()), words},
                                        {reinterpret_cast<uint64_t*>(all.data()), words * exchange.world_size()});
  if (!gathered.ok()) return gathered;
  return all;
}

// Fills `results` with the numbers of every rank, with those of DropCompute, and with those of the sharded training. Also
// writes the record and trace files that `micro_batches` asks for. All ranks must call it.
unisono::Status gather_results(const Trainer& trainer, const MicroBatchSettings& micro_batches, GradientExchange& exchange,
                               Results& results);

}  // namespace language_model

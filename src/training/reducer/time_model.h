// Predicts from the rates of links and memory how long it takes to average a group of tensors, without and with compression.
// docs/design/methods/arc_top_k.md, "Time model", describes the model.
#pragma once

#include <cstdint>
#include <span>

#include "compressors/row_rule.h"
#include "unisono/codec.h"

namespace unisono {

struct MachineRates {
  uint32_t ranks = 1;
  double latency_s = 0;           // latency of one message
  double link_bytes_per_s = 0;    // how fast a rank sends
  double memory_bytes_per_s = 0;  // how fast a rank reads and writes memory while it compresses
};

struct PredictedTime {
  double dense_s = 0;
  double compressed_s = 0;  // time of both all-reduces and of the work in memory
  double local_s = 0;       // time of the work in memory
  // Predictions are not exact, so compression must save at least 3 % of the time.
  bool pays() const { return compressed_s <= 0.97 * dense_s; }
};

// Returns how many bytes this codec sends for one fp32 value.
double bytes_per_value(const Codec& codec);
// Returns how many seconds one ring all-reduce of `bytes` takes.
double all_reduce_time(const MachineRates& rates, double bytes);
// `value_bytes` is the number of bytes that the second all-reduce sends for one value. It is 4 without a codec.
PredictedTime predict(const MachineRates& rates, const RowRule& rule, std::span<const Decision> group, bool sketched,
                      double value_bytes);

}  // namespace unisono

// Predicts what averaging a group of tensors costs, whole and compressed, by the rates of links and memory: the model of
// docs/design/methods/arc_top_k.md, "Time model".
#pragma once

#include <cstdint>
#include <span>

#include "compressors/row_rule.h"
#include "unisono/codec.h"

namespace unisono {

struct MachineRates {
  uint32_t ranks = 1;
  double latency_s = 0;           // of one message
  double link_bytes_per_s = 0;    // a rank sends
  double memory_bytes_per_s = 0;  // a rank reads and writes while it compresses
};

struct PredictedTime {
  double dense_s = 0;
  double compressed_s = 0;  // both all-reduces and what is done in memory
  double local_s = 0;       // what is done in memory
  // At least 3 % must be gained, since predictions are not exact.
  bool pays() const { return compressed_s <= 0.97 * dense_s; }
};

// Bytes on the wire of one fp32 value that travels with the codec.
double bytes_per_value(const Codec& codec);
// The time of one all-reduce of so many bytes.
double all_reduce_time(const MachineRates& rates, double bytes);
// value_bytes: on the wire, of one value that is sent; 4 without a codec.
PredictedTime predict(const MachineRates& rates, const RowRule& rule, std::span<const Decision> group, bool sketched,
                      double value_bytes);

}  // namespace unisono

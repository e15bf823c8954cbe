#include "training/reducer/time_model.h"

#include <algorithm>

#include "unisono/codec_facts.h"

namespace unisono {
namespace {

// How many passes over memory PowerSGD makes at rank 4. It computes four products with a factor: for P, for Q, for the average,
// and for the residual. Each product counts as three passes, because the sketch of rank 4 that measures the memory rate also
// counts as three. At higher ranks, the time grows in proportion to the rank.
constexpr double passes_of_factors = 12;

}  // namespace

double bytes_per_value(const Codec& codec) { return bits_per_element(codec.reduce) / 8; }

double all_reduce_time(const MachineRates& rates, double bytes) {
  const double rounds = 2.0 * (rates.ranks - 1);
  return rounds * (rates.latency_s + bytes / (rates.ranks * rates.link_bytes_per_s));
}

PredictedTime predict(const MachineRates& rates, const RowRule& rule, std::span<const Decision> group, bool sketched,
                      double value_bytes) {
  double all = 0, sketches = 0, sent = 0, touched = 0;
  for (const auto& decision : group) {
    if (decision.treatment == Treatment::skipped) continue;
    all += static_cast<double>(decision.matrix.elements());
    sketches += sketched ? static_cast<double>(decision.sketch_elements(rule)) : 0;
    sent += static_cast<double>(decision.value_elements());
    if (decision.treatment != Treatment::compressed) continue;
    // There are six passes over the elements: read gradient, read residual, write sum, read sum, write residual, write average.
    // There are four passes over the sent rows: gathering them reads and writes, and scattering them reads and writes.
    if (decision.factors == 0)
      touched += 6 * static_cast<double>(decision.matrix.elements()) + 4 * static_cast<double>(decision.value_elements());
    else
      touched += passes_of_factors * static_cast<double>(decision.matrix.elements()) *
                 std::max(1.0, static_cast<double>(decision.factors) / 4);
  }
  PredictedTime time{.dense_s = all_reduce_time(rates, 4 * all), .local_s = 4 * touched / rates.memory_bytes_per_s};
  time.compressed_s =
      (sketches > 0 ? all_reduce_time(rates, 4 * sketches) : 0) + all_reduce_time(rates, value_bytes * sent) + time.local_s;
  return time;
}

}  // namespace unisono

// Sums over the steps of a trace, for one threshold. All sums are integers, for two reasons: their values do not depend on the
// order of steps and workers, and a term that was added can be subtracted exactly.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {

// The speed-up of a step is counted in units of 2^-52. This is exact for doubles >= 1. A speed-up is limited to 2^40, so that a
// sum over a trace (which has less than 2^32 micro-batches) fits 128 bits.
constexpr double speedup_unit = 0x1p52, speedup_max = 0x1p40;

// Returns whole / cut, but at most speedup_max. Returns 1 if both are 0.
inline double speedup_of(double whole, double cut) {
  if (cut <= 0) return whole <= 0 ? 1 : speedup_max;
  return std::min(whole / cut, speedup_max);
}
inline Wide in_speedup_units(double whole, double cut) { return static_cast<Wide>(speedup_of(whole, cut) * speedup_unit); }

struct StepSums {
  uint64_t steps = 0, micro_batches = 0;  // number of steps, and number of micro-batches of all workers in all steps
  uint64_t computed = 0;
  Wide speedup = 0;  // Each step adds its computed micro-batches × its speed-up.
  // Each step adds its compute time: to whole_ns without a threshold, to cut_ns with the threshold.
  Wide whole_ns = 0, cut_ns = 0;

  void add(uint64_t count, int64_t whole, int64_t cut, double other_ns) {
    computed += count;
    speedup += count * in_speedup_units(static_cast<double>(whole) + other_ns, static_cast<double>(cut) + other_ns);
    whole_ns += static_cast<Wide>(whole);
    cut_ns += static_cast<Wide>(cut);
  }

  ThresholdValue value(int64_t threshold_ns, double other_ns) const {
    const auto all = static_cast<double>(micro_batches), others = static_cast<double>(steps) * other_ns;
    return {.threshold_ns = threshold_ns,
            .step = static_cast<double>(speedup) / speedup_unit / all,
            .total = static_cast<double>(computed) / all *
                     speedup_of(static_cast<double>(whole_ns) + others, static_cast<double>(cut_ns) + others),
            .drop = static_cast<double>(micro_batches - computed) / all};
  }
};

inline StepSums sums_of(const ComputeTrace& trace) { return {.steps = trace.steps(), .micro_batches = trace.ends.size()}; }

}  // namespace unisono

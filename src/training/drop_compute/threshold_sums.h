// Sums over steps with a threshold. All sums are integers, so the order of steps and workers does not change a bit, and a term
// can be removed exactly.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {

// Speed-up of a step in units of 2^-52: every double from 1 on is a multiple of it. At most 2^40, so that the sum over a trace
// of less than 2^32 micro-batches fits.
constexpr double quicker_unit = 0x1p52, quicker_most = 0x1p40;

// Steps that take no time have a speed-up of 1.
inline double times_as_quick(double whole, double cut) {
  if (cut <= 0) return whole <= 0 ? 1 : quicker_most;
  return std::min(whole / cut, quicker_most);
}
inline Wide in_quicker_units(double whole, double cut) { return static_cast<Wide>(times_as_quick(whole, cut) * quicker_unit); }

struct StepSums {
  uint64_t steps = 0, micro_batches = 0;  // of all workers in all steps
  uint64_t computed = 0;
  Wide quicker = 0;               // sum of computed micro-batches × speed-up of the step
  Wide whole_ns = 0, cut_ns = 0;  // compute time of steps, without and with the threshold

  void add(uint64_t count, int64_t whole, int64_t cut, double other_ns) {
    computed += count;
    quicker += count * in_quicker_units(static_cast<double>(whole) + other_ns, static_cast<double>(cut) + other_ns);
    whole_ns += static_cast<Wide>(whole);
    cut_ns += static_cast<Wide>(cut);
  }

  ThresholdValue value(int64_t threshold_ns, double other_ns) const {
    const auto all = static_cast<double>(micro_batches), others = static_cast<double>(steps) * other_ns;
    return {.threshold_ns = threshold_ns,
            .step = static_cast<double>(quicker) / quicker_unit / all,
            .total = static_cast<double>(computed) / all *
                     times_as_quick(static_cast<double>(whole_ns) + others, static_cast<double>(cut_ns) + others),
            .drop = static_cast<double>(micro_batches - computed) / all};
  }
};

inline StepSums sums_of(const ComputeTrace& trace) { return {.steps = trace.steps(), .micro_batches = trace.ends.size()}; }

}  // namespace unisono

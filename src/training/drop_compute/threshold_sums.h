// What steps with a threshold come to together. Every sum is one of whole numbers, so that it is the same to the bit in
// whatever order steps and workers are added, and a term that was added can be taken away again without a trace.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "training/drop_compute/threshold_search.h"

namespace unisono {

// How many times as quick a step is, in units of 2^-52: of these every double from 1 on is a whole number. At most 2^40, so
// that the sum over a trace, which has less than 2^32 micro-batches, fits.
constexpr double quicker_unit = 0x1p52, quicker_most = 0x1p40;

// Steps that take no time at all are as quick as each other.
inline double times_as_quick(double whole, double cut) {
  if (cut <= 0) return whole <= 0 ? 1 : quicker_most;
  return std::min(whole / cut, quicker_most);
}
inline Wide in_quicker_units(double whole, double cut) { return static_cast<Wide>(times_as_quick(whole, cut) * quicker_unit); }

struct StepSums {
  uint64_t steps = 0, micro_batches = 0;  // of all workers in all steps
  uint64_t computed = 0;
  Wide quicker = 0;               // sum of computed × how many times as quick its step is
  Wide whole_ns = 0, cut_ns = 0;  // of steps' computing, without a threshold and with it

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

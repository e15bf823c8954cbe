// Predicts in closed form, before a run, how much a given threshold gains. The model assumes that the times of micro-batches
// are independent and have a known mean and standard deviation. Forecasts are possible for more workers than were recorded. Use
// these functions for planning only: in a run, thresholds always come from recorded times. The functions are pure. Times are in
// seconds.
//
// Sources: the expected maximum z(n) is the approximation of Bailey, Borwein, Lopez de Prado and Zhu (2014, SSRN 2308659). The
// other formulae use two facts: the expectation is linear, and the maximum of independent values has a known distribution. The
// formulae hold for the stop rule `at` (a step ends at the threshold), unless a comment names another rule.
// docs/design/methods/drop_compute.md explains the symbols.
#pragma once

#include <cstdint>
#include <span>

#include "training/drop_compute/compute_trace.h"

namespace unisono {

// Describes a step of M micro-batches. A micro-batch takes `mean` > 0 seconds on average, with the standard deviation
// `deviation` >= 0. The model takes the sum of their times as normally distributed. `other` is Tc >= 0, the part of a step's
// time that is not spent computing.
struct ComputeModel {
  uint32_t micro_batches = 1;
  double mean = 1, deviation = 0;
  double other = 0;
};

// The normal distribution function Phi, and its inverse for 0 < p < 1. Both are accurate nearly to double precision.
double normal_cdf(double x);
double normal_quantile(double p);
// Both functions return the expected maximum of N standard normal values, which is 0 for N = 1. expected_maximum_closed()
// returns the approximation z(N). It is 8 % too low for N = 2, and up to 3 % too high for larger N. expected_maximum() returns
// z_exact(N), with an error of 1e-9.
double expected_maximum_closed(uint64_t workers);
double expected_maximum(uint64_t workers);

// Returns E[T]: the expected time until the slowest worker has computed all micro-batches, if there is no threshold. `factor`
// is z(N) or z_exact(N).
double expected_compute(const ComputeModel& model, double factor);
// Returns E[B]: the expected number of micro-batches that a worker computes with the rule `at`.
double expected_computed_at(const ComputeModel& model, double threshold);
// Returns E[k_after]: the expected number of micro-batches that a worker computes with the rule `after`.
double expected_computed_after(const ComputeModel& model, double threshold, uint32_t lag);
double expected_step_at(const ComputeModel& model, uint64_t workers, double threshold);  // Returns E[min(tau, T)].
// Returns S_eff of the rule `at`: by which factor the threshold increases the number of micro-batches per second.
double expected_speedup(const ComputeModel& model, double threshold, double factor);

struct BestThreshold {
  double threshold = 0;  // This is tau*. It does not depend on the number of workers.
  double drop = 0;
  double ratio = 0;           // E[B] / (tau + Tc) at the threshold
  uint32_t local_maxima = 0;  // how many local maxima `ratio` has in the searched range
};
// Finds the threshold with the highest E[B] / (tau + Tc). The search begins at `mean` and ends at M mean + 8 deviation sqrt(M).
// It leaves out smaller thresholds, because the normal distribution includes negative times there. The time of the search is at
// most proportional to M mean / deviation.
BestThreshold best_threshold(const ComputeModel& model);

// Returns the expected maximum of N independent values. Their distribution is given in one of two ways: by a sample, or by a
// list of `values` and the `shares` with which they occur (the shares sum to 1).
double expected_maximum_of(std::span<const double> sample, uint64_t workers);
double expected_maximum_of(std::span<const double> values, std::span<const double> shares, uint64_t workers);

// Forecasts a run of many workers with independent times, based on the recorded times of a few workers.
struct TraceForecast {
  double compute = 0;    // E[T] without a threshold, in seconds
  double threshold = 0;  // the threshold with the highest S_eff, in seconds
  double speedup = 1;    // S_eff at the threshold
  double drop = 0;
  // True if workers > I * N / 10. The trace then has too few records to describe the slowest workers.
  bool too_few_records = false;
};
// Makes a forecast for the rule `at`, from the distribution of all recorded times T[i,n,m]. The function takes, from the
// thresholds that drop at most max_drop, the one with the highest speed-up. If no threshold gains anything, it returns one that
// drops nothing, with a speed-up of 1. If the trace is invalid, it returns zeros and a speed-up of 1.
TraceForecast forecast_from(const ComputeTrace& trace, uint64_t workers, double max_drop);

}  // namespace unisono

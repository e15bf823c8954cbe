// What a threshold is worth before anything has run: closed forms for micro-batches of independent latencies with a known mean
// and spread, and for more workers than were recorded. For planning only; a threshold in force always comes from recorded
// times. Pure; seconds.
//
// Sources: the expected maximum z(n) is the approximation of Bailey, Borwein, Lopez de Prado and Zhu (2014, SSRN 2308659); all
// else is derived from the linearity of expectation and the law of a maximum of independent values. Rule `at`, but where
// another is named.
#pragma once

#include <cstdint>
#include <span>

#include "training/drop_compute/compute_trace.h"

namespace unisono {

// M micro-batches of mean `mean` > 0 and standard deviation `deviation` >= 0 each, and Tc >= 0, what a step takes beside them.
// Their sum is taken for normal.
struct ComputeModel {
  uint32_t micro_batches = 1;
  double mean = 1, deviation = 0;
  double other = 0;
};

// Phi, and its inverse for 0 < p < 1, to the last digits or so.
double normal_cdf(double x);
double normal_quantile(double p);
// Of the largest of so many standard normal values: z(N), an approximation (8 % low for two, up to 3 % high for more), and
// z_exact(N), to 1e-9. 0 for one.
double expected_maximum_closed(uint64_t workers);
double expected_maximum(uint64_t workers);

// E[T]: when the slowest of so many workers is through with all, without a threshold. factor: z(N) or z_exact(N).
double expected_compute(const ComputeModel& model, double factor);
double expected_computed_at(const ComputeModel& model, double threshold);                   // E[B]
double expected_computed_after(const ComputeModel& model, double threshold, uint32_t lag);  // E[k_after]
double expected_step_at(const ComputeModel& model, uint64_t workers, double threshold);     // E[min(tau, T)]
// S_eff of rule `at`.
double expected_speedup(const ComputeModel& model, double threshold, double factor);

struct BestThreshold {
  double threshold = 0;  // tau*, that does not depend on the number of workers
  double drop = 0;
  double ratio = 0;           // E[B] / (tau + Tc) there
  uint32_t local_maxima = 0;  // of that ratio, over the range that was searched
};
// Where E[B] / (tau + Tc) is highest between `mean` and M mean + 8 deviation sqrt(M): below, a normal law's negative times make
// it meaningless. Takes time in proportion to M mean / deviation at most.
BestThreshold best_threshold(const ComputeModel& model);

// E[max of N values] of a law that is given by a sample, or by values with their shares (which sum to 1).
double expected_maximum_of(std::span<const double> sample, uint64_t workers);
double expected_maximum_of(std::span<const double> values, std::span<const double> shares, uint64_t workers);

// A trace as it might have been with so many workers, whose times are independent: E[T] for planning from few workers' records.
struct TraceForecast {
  double compute = 0;    // E[T] without a threshold, s
  double threshold = 0;  // s, at the best S
  double speedup = 1;    // S_eff there
  double drop = 0;
  bool too_few_records = false;  // workers > I * N / 10: the tail that decides was hardly seen
};
// Rule `at`, from the law of recorded T[i,n,m] over all steps and workers. The threshold is the best one that drops no more
// than max_drop; if none is worth it, one that drops nothing, with a speedup of 1. A trace that is not right: nothing but
// zeros, and a speedup of 1.
TraceForecast forecast_from(const ComputeTrace& trace, uint64_t workers, double max_drop);

}  // namespace unisono

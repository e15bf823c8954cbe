// Predicts the value of a threshold before a run, in closed form: for micro-batches of independent latencies with known mean
// and deviation, and for more workers than were recorded. For planning only; a threshold in use always comes from recorded
// times. Pure; times in seconds.
//
// Sources: the expected maximum z(n) is the approximation of Bailey, Borwein, Lopez de Prado and Zhu (2014, SSRN 2308659). The
// rest follows from the linearity of expectation and the distribution of a maximum of independent values. Formulae are for the
// rule `at` unless they name another.
#pragma once

#include <cstdint>
#include <span>

#include "training/drop_compute/compute_trace.h"

namespace unisono {

// M micro-batches with mean `mean` > 0 and standard deviation `deviation` >= 0 each, and Tc >= 0, the rest of a step. Their sum
// is taken as normal.
struct ComputeModel {
  uint32_t micro_batches = 1;
  double mean = 1, deviation = 0;
  double other = 0;
};

// Phi, and its inverse for 0 < p < 1, to nearly full double precision.
double normal_cdf(double x);
double normal_quantile(double p);
// Expected maximum of N standard normal values: z(N), an approximation (8 % low for two, up to 3 % high for more), and
// z_exact(N), to 1e-9. 0 for one.
double expected_maximum_closed(uint64_t workers);
double expected_maximum(uint64_t workers);

// E[T]: time until the slowest worker has computed everything, without a threshold. factor: z(N) or z_exact(N).
double expected_compute(const ComputeModel& model, double factor);
double expected_computed_at(const ComputeModel& model, double threshold);                   // E[B]
double expected_computed_after(const ComputeModel& model, double threshold, uint32_t lag);  // E[k_after]
double expected_step_at(const ComputeModel& model, uint64_t workers, double threshold);     // E[min(tau, T)]
// S_eff of the rule `at`.
double expected_speedup(const ComputeModel& model, double threshold, double factor);

struct BestThreshold {
  double threshold = 0;  // tau*; it does not depend on the number of workers
  double drop = 0;
  double ratio = 0;           // E[B] / (tau + Tc) at the threshold
  uint32_t local_maxima = 0;  // of that ratio, in the searched range
};
// Maximizes E[B] / (tau + Tc) between `mean` and M mean + 8 deviation sqrt(M). Below, the negative times of a normal
// distribution make the ratio meaningless. Takes time in proportion to M mean / deviation at most.
BestThreshold best_threshold(const ComputeModel& model);

// E[max of N values] of a distribution given by a sample, or by values with their shares (which sum to 1).
double expected_maximum_of(std::span<const double> sample, uint64_t workers);
double expected_maximum_of(std::span<const double> values, std::span<const double> shares, uint64_t workers);

// Forecast of a trace for another number of workers with independent times: plans many workers from few workers' records.
struct TraceForecast {
  double compute = 0;    // E[T] without a threshold, s
  double threshold = 0;  // s, at the best S
  double speedup = 1;    // S_eff at the threshold
  double drop = 0;
  bool too_few_records = false;  // workers > I * N / 10: the records hold too little of the decisive tail
};
// Rule `at`, from the distribution of recorded T[i,n,m] over all steps and workers. The threshold is the best that drops no
// more than max_drop. If none pays, it is one that drops nothing, with a speedup of 1. An invalid trace gives zeros and a
// speedup of 1.
TraceForecast forecast_from(const ComputeTrace& trace, uint64_t workers, double max_drop);

}  // namespace unisono

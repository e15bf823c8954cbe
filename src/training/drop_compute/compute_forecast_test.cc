// The expected numbers are from docs/design/methods/drop_compute.md, "Checked values".
#include "training/drop_compute/compute_forecast.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "training/drop_compute/compute_trace_test_support.h"

namespace unisono {
namespace {

const ComputeModel twelve{.micro_batches = 12, .mean = 1, .deviation = 0.25, .other = 0.5};

TEST(NormalLaw, quantiles_are_the_inverse_of_the_distribution) {
  EXPECT_EQ(normal_cdf(0), 0.5);
  EXPECT_NEAR(normal_cdf(1.959963984540054), 0.975, 1e-15);
  EXPECT_NEAR(normal_quantile(0.5), 0, 1e-15);
  EXPECT_NEAR(normal_quantile(0.975), 1.959963984540054, 1e-12);
  EXPECT_NEAR(normal_quantile(1e-10), -6.361340902404056, 1e-12);
  for (double p = 1e-300; p < 1; p *= 1.1) EXPECT_NEAR(normal_cdf(normal_quantile(p)), p, 1e-12 * p) << p;
  for (double p = 0.25; p > 1e-12; p /= 2) EXPECT_EQ(normal_quantile(1 - p), -normal_quantile(p)) << p;
}

// Check 1 of docs/design/methods/drop_compute.md: z(N) and z_exact(N).
TEST(ComputeForecast, expected_maximum_of_normal_values) {
  struct Case {
    uint64_t workers;
    double closed, exact;
  };
  for (const auto& [workers, closed, exact] :
       {Case{2, 0.519755344, 0.564189584}, Case{8, 1.459014077, 1.423600306}, Case{32, 2.099868202, 2.069668828},
        Case{128, 2.616268555, 2.594597369}, Case{200, 2.765523905, 2.746042447}, Case{1024, 3.261859895, 3.248239601}}) {
    EXPECT_NEAR(expected_maximum_closed(workers), closed, 1e-8) << workers;
    EXPECT_NEAR(expected_maximum(workers), exact, 1e-7) << workers;
  }
  EXPECT_NEAR(expected_maximum_closed(10), 1.575, 5e-4);
  EXPECT_NEAR(expected_maximum_closed(45) / std::sqrt(5.0), 0.9998, 5e-4);
  EXPECT_NEAR(expected_maximum(2), 1 / std::sqrt(std::acos(-1.0)), 1e-9);
  EXPECT_NEAR(expected_maximum(3), 1.5 / std::sqrt(std::acos(-1.0)), 1e-9);
  for (const double factor : {expected_maximum_closed(1), expected_maximum(1)}) EXPECT_EQ(expected_compute(twelve, factor), 12);
  for (uint64_t workers = 1; workers < 1'000'000'000'000; workers *= 3) {
    EXPECT_LT(expected_maximum(workers), expected_maximum(3 * workers));
    EXPECT_NEAR(expected_maximum(workers + 2) / expected_maximum_closed(workers + 2), 1, 0.03) << workers;
  }
}

// Check 2 of docs/design/methods/drop_compute.md: E[T] for several models and numbers of workers.
TEST(ComputeForecast, expected_time_of_the_slowest) {
  EXPECT_NEAR(expected_compute(twelve, expected_maximum_closed(8)), 13.263543, 1e-6);
  EXPECT_NEAR(expected_compute(twelve, expected_maximum_closed(200)), 14.395014, 1e-6);
  EXPECT_NEAR(expected_compute(twelve, expected_maximum(8)), 13.232874, 1e-6);
  EXPECT_NEAR(expected_compute(twelve, expected_maximum(200)), 14.378143, 1e-6);
  EXPECT_NEAR(expected_compute({.micro_batches = 12, .mean = 0.45, .deviation = 0.05}, expected_maximum_closed(200)), 5.879003,
              1e-6);
  EXPECT_NEAR(expected_compute({.micro_batches = 64, .mean = 0.1, .deviation = 0.03}, expected_maximum_closed(200)), 7.063726,
              1e-6);
}

// Check 3 of docs/design/methods/drop_compute.md: E[B] and E[k_after]. Without lag, they differ by P(T_n > tau).
TEST(ComputeForecast, expected_micro_batches) {
  EXPECT_NEAR(expected_computed_at(twelve, 11), 10.517314, 1e-6);
  EXPECT_NEAR(expected_computed_at(twelve, 12), 11.380362, 1e-6);
  EXPECT_NEAR(expected_computed_at({.micro_batches = 12, .mean = 0.45, .deviation = 0.05}, 5.4), 11.496672, 1e-6);
  EXPECT_NEAR(expected_computed_after(twelve, 10.6, 0), 11.074245, 1e-6);
  EXPECT_NEAR(expected_computed_after(twelve, 10.6, 1), 11.759491, 1e-6);
  EXPECT_NEAR(expected_computed_after(twelve, 11, 0) - expected_computed_at(twelve, 11), 0.875893, 1e-6);
  EXPECT_NEAR(expected_computed_after(twelve, 12, 0) - expected_computed_at(twelve, 12), 0.5, 1e-6);
  for (const uint32_t lag : {11u, 12u, 4000000000u}) EXPECT_EQ(expected_computed_after(twelve, 1, lag), 12);
}

// Check 4 of docs/design/methods/drop_compute.md: the best threshold and its dropped share.
TEST(ComputeForecast, best_threshold_does_not_depend_on_the_number_of_workers) {
  const auto best = best_threshold(twelve);
  EXPECT_NEAR(best.threshold, 11.317274, 1e-4);
  EXPECT_NEAR(best.drop, 0.098715, 2e-5);
  const auto gain = [&](double threshold, double factor) { return expected_speedup(twelve, threshold, factor); };
  EXPECT_NEAR(gain(best.threshold, expected_maximum_closed(8)), 1.049724, 1e-6);
  EXPECT_NEAR(gain(best.threshold, expected_maximum_closed(200)), 1.136019, 1e-6);
  EXPECT_NEAR(gain(12, expected_maximum_closed(8)), 1.044227, 1e-6);
  EXPECT_NEAR(gain(12, expected_maximum_closed(200)), 1.130071, 1e-6);
  EXPECT_NEAR(gain(best.threshold, expected_maximum_closed(2)), 0.987686, 1e-6);
  EXPECT_NEAR(gain(best.threshold, expected_maximum(8)), 1.047385, 1e-6);
  EXPECT_NEAR(gain(best.threshold, expected_maximum(200)), 1.134733, 1e-6);
  EXPECT_NEAR(gain(best.threshold, expected_maximum(2)), 0.990620, 1e-6);
  auto more = twelve;
  more.other = 2;
  EXPECT_NEAR(best_threshold(more).threshold, 11.724607, 1e-4);
  // The best threshold is also best for 200 workers.
  for (double threshold = 1; threshold < 14; threshold += 0.01)
    EXPECT_LE(gain(threshold, expected_maximum(200)), gain(best.threshold, expected_maximum(200)) + 1e-12) << threshold;
}

// Check 5 of docs/design/methods/drop_compute.md. The deviation is small, so the ratio has a local maximum after each of the 8
// micro-batches.
TEST(ComputeForecast, best_threshold_is_the_best_of_a_staircases_local_maxima) {
  const ComputeModel stairs{.micro_batches = 8, .mean = 1, .deviation = 0.05, .other = 0.2};
  const auto best = best_threshold(stairs);
  EXPECT_EQ(best.local_maxima, 8u);
  EXPECT_NEAR(best.threshold, 8.209350, 1e-4);
  EXPECT_NEAR(best.drop, 0.008674, 2e-5);
  EXPECT_NEAR(expected_speedup(stairs, best.threshold, expected_maximum_closed(8)), 0.991326, 1e-6);
  EXPECT_NEAR(expected_speedup(stairs, best.threshold, expected_maximum_closed(200)), 1.012752, 1e-6);
}

// Check 6 of docs/design/methods/drop_compute.md: E[min(tau, T)].
TEST(ComputeForecast, expected_time_of_a_step_with_a_threshold) {
  EXPECT_NEAR(expected_step_at(twelve, 2, 12), 11.898807, 1e-6);
  EXPECT_NEAR(expected_step_at(twelve, 8, 13), 12.891926, 1e-6);
  // If the threshold is very large, the expected time of a step is E[T]. If it is very small, the expected time is the
  // threshold.
  for (const uint64_t workers : {1, 2, 8, 200, 1'000'000})
    EXPECT_NEAR(expected_step_at(twelve, workers, 1000), expected_compute(twelve, expected_maximum(workers)), 1e-8) << workers;
  EXPECT_NEAR(expected_step_at(twelve, 8, 2), 2, 1e-9);
}

// Check 7 of docs/design/methods/drop_compute.md: expected maximum of values 1, 2 and 5 with shares 0.7, 0.25 and 0.05.
TEST(ComputeForecast, expected_maximum_of_any_law) {
  const double values[] = {5, 1, 2}, shares[] = {0.05, 0.7, 0.25};
  EXPECT_NEAR(expected_maximum_of(values, shares, 8), 2.952090696, 1e-9);
  EXPECT_NEAR(expected_maximum_of(values, shares, 200), 4.999894842, 1e-9);
  EXPECT_NEAR(expected_maximum_of(values, shares, 1), 1.45, 1e-12);
  std::vector<double> sample;
  for (int i = 0; i < 100; ++i) sample.push_back(i % 20 == 7 ? 5 : i % 4 == 0 ? 2 : 1);
  EXPECT_NEAR(expected_maximum_of(sample, 8), 2.952090696, 1e-9);
  const ComputeModel normal{.micro_batches = 1, .mean = 1.45, .deviation = std::sqrt(0.7 + 1 + 1.25 - 1.45 * 1.45)};
  EXPECT_NEAR(expected_compute(normal, expected_maximum_closed(8)), 2.793165, 1e-5);
  EXPECT_NEAR(expected_compute(normal, expected_maximum_closed(200)), 3.995935, 1e-5);
  EXPECT_EQ(expected_maximum_of(std::span<const double>(), 8), 0);
}

TEST(ComputeForecast, without_deviation_drops_nothing) {
  for (const double other : {0.0, 0.5}) {
    const ComputeModel constant{.micro_batches = 12, .mean = 0.1, .deviation = 0, .other = other};
    const auto best = best_threshold(constant);
    EXPECT_NEAR(best.threshold, 1.2, 1e-12);
    EXPECT_EQ(best.drop, 0);
    EXPECT_EQ(best.local_maxima, 12u);
    EXPECT_NEAR(expected_speedup(constant, best.threshold, expected_maximum(200)), 1, 1e-12);
    EXPECT_EQ(expected_computed_at(constant, 0.35), 3);
    EXPECT_EQ(expected_computed_after(constant, 0.35, 0), 4);
    EXPECT_EQ(expected_step_at(constant, 200, 0.35), 0.35);
    EXPECT_NEAR(expected_step_at(constant, 200, 2), 1.2, 1e-12);
    EXPECT_NEAR(expected_compute(constant, expected_maximum(200)), 1.2, 1e-12);
  }
}

// best_threshold() skips negligible terms and thresholds. Plain sums over a fine grid must give the same result.
TEST(ComputeForecast, best_threshold_equals_an_exhaustive_search) {
  for (const ComputeModel& model :
       {ComputeModel{1, 1, 0.2, 0}, ComputeModel{1, 1, 0.2, 1}, ComputeModel{5, 0.01, 0.00001, 0.001},
        ComputeModel{24, 0.3, 0.3, 0}, ComputeModel{40, 2, 0.02, 3}}) {
    const auto best = best_threshold(model);
    double highest = 0,
           range = model.micro_batches * model.mean + 8 * model.deviation * std::sqrt(model.micro_batches) - model.mean;
    const int places = static_cast<int>(range / model.deviation * 16);
    for (int i = 0; i <= places; ++i) {
      const double threshold = model.mean + range * i / places;
      double sum = 0;
      for (uint32_t m = 1; m <= model.micro_batches; ++m)
        sum += normal_cdf((threshold - m * model.mean) / (model.deviation * std::sqrt(m)));
      highest = std::max(highest, sum / (threshold + model.other));
      ASSERT_NEAR(expected_computed_at(model, threshold), sum, 1e-12 * model.micro_batches);
    }
    EXPECT_GE(best.ratio, highest * (1 - 1e-12)) << model.micro_batches;
    EXPECT_LE(best.ratio, highest * 1.001) << model.micro_batches;
    EXPECT_NEAR(best.ratio, expected_computed_at(model, best.threshold) / (best.threshold + model.other), 1e-12 * best.ratio);
  }
}

TEST(ComputeForecast, trace_forecast_follows_the_recorded_distribution) {
  // As in check 7 of docs/design/methods/drop_compute.md, T_n is 1, 2 or 5 seconds, with shares 0.7, 0.25 and 0.05. Only the
  // first micro-batch takes time.
  std::vector<std::vector<std::vector<int64_t>>> latencies;
  for (int step = 0; step < 10; ++step) {
    auto& workers = latencies.emplace_back();
    for (int n = 0; n < 10; ++n) workers.push_back({(10 * step + n) % 20 == 7 ? 5 : (10 * step + n) % 4 == 0 ? 2 : 1, 0, 0});
  }
  const auto trace = trace_of(latencies, second, second / 2);
  for (const auto& [workers, expected] : {std::pair{8, 2.952090696}, std::pair{200, 4.999894842}}) {
    const auto forecast = forecast_from(trace, static_cast<uint64_t>(workers), 0.10);
    EXPECT_NEAR(forecast.compute, expected, 1e-9);
    EXPECT_EQ(forecast.too_few_records, workers > 10);
    // Dropping the slowest 5 % of the records shortens the step from E[T] to 2 s.
    EXPECT_NEAR(forecast.threshold, 2, 1e-12);
    EXPECT_NEAR(forecast.drop, 0.05, 1e-12);
    EXPECT_NEAR(forecast.speedup, 0.95 * (expected + 0.5) / 2.5, 1e-9);
  }
  const auto all = forecast_from(trace, 200, 0.01);
  EXPECT_EQ(all.drop, 0);
  EXPECT_NEAR(all.speedup, 1, 1e-4);
  EXPECT_FALSE(forecast_from(trace, 10, 0.1).too_few_records);
  EXPECT_TRUE(forecast_from(trace, 11, 0.1).too_few_records);
}

TEST(ComputeForecast, trace_forecast_of_normal_times_equals_the_closed_form) {
  Random random(20261123);
  std::vector<std::vector<std::vector<int64_t>>> latencies(100,
                                                           std::vector<std::vector<int64_t>>(50, std::vector<int64_t>(12)));
  for (auto& step : latencies) {
    for (auto& worker : step) {
      for (auto& latency : worker)
        latency = std::llround(1e9 * std::max(0.0, 1 + 0.25 * normal_quantile(random.unit() * 0.999999 + 5e-7)));
    }
  }
  const auto trace = trace_of(latencies, 1, second / 2);
  const auto forecast = forecast_from(trace, 200, 0.5);
  const double gain = expected_speedup(twelve, best_threshold(twelve).threshold, expected_maximum(200));
  EXPECT_NEAR(forecast.compute, expected_compute(twelve, expected_maximum(200)), 0.05);
  EXPECT_NEAR(forecast.speedup, gain, 0.01);
  EXPECT_NEAR(forecast.drop, best_threshold(twelve).drop, 0.02);
}

TEST(ComputeForecast, trace_forecast_of_an_invalid_trace_is_zero) {
  EXPECT_EQ(forecast_from({}, 8, 0.1).compute, 0);
  EXPECT_EQ(forecast_from({}, 8, 0.1).speedup, 1);
}

TEST(ComputeForecast, trace_forecast_of_constant_times_drops_nothing) {
  for (size_t micro_batches = 1; micro_batches < 60; ++micro_batches) {
    const auto constant = forecast_from(trace_of({std::vector(2, std::vector<int64_t>(micro_batches, 7))}, 1, 0), 50, 1);
    EXPECT_EQ(constant.drop, 0);
    EXPECT_NEAR(constant.speedup, 1, 1e-12);
  }
}

}  // namespace
}  // namespace unisono

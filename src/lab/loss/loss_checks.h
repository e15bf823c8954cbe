// Compares the measurements of `unisono-lab simulate loss` with the formulae, line by line, with a verdict on each. Pure.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lab/loss/loss_law.h"
#include "lab/loss/loss_plan.h"

namespace unisono::cli {

// All seeds put together.
struct LossResult {
  LossPlan plan;
  std::optional<sim::EstimatesOutcome> estimates = {};
  std::optional<sim::DriftOutcome> drift = {};
  std::optional<sim::FixedPointOutcome> fixed_point = {};
};

// Constants of all problems. unknown: a value that a check does not have. z_interval, z_allowed: standard errors of the 95 %
// intervals, and of the allowed distances, which chance exceeds once in 150,000. rounding: that of fp32 sums of values about 1.
inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
inline constexpr double z_interval = 1.96, z_allowed = 4.5;
inline constexpr double rounding = 1e-5;

// unsure: too few steps for a verdict. control: a negative control, which need not hold. none: there is nothing to compare
// with.
enum class CheckVerdict : uint8_t { ok = 0, off, unsure, control, none };
std::string_view name(CheckVerdict verdict);

struct LossCheck {
  std::string group;  // "estimates", "drift", "fixed point"
  std::string what;
  double measured = 0;
  double interval = 0;  // half of the 95 % confidence interval; NaN: not known
  double formula = 0;   // NaN: none
  double allowed = 0;   // how far they may be apart: the tolerance, or 4.5 standard errors
  CheckVerdict verdict = CheckVerdict::none;
  std::string note = {};
};
std::vector<LossCheck> checks_of(const LossResult& result);

// O and P by formula, in units of sigma_u^2, for this run's updates. NaN: no formula is known.
sim::Drift expected_drift(const LossResult& result);
// By formula, how far each of sim::estimators is from the true mean. NaN: no formula is known.
std::vector<double> expected_deviations(const LossPlan& plan);

}  // namespace unisono::cli

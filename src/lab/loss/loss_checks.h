// Compares the measurements of `unisono-lab simulate loss` with the formulae, and gives a verdict on each. Performs no I/O.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "lab/loss/loss_law.h"
#include "lab/loss/loss_plan.h"

namespace unisono::lab {

// The results of all seeds together.
struct LossResult {
  LossPlan plan;
  std::optional<sim::EstimatesOutcome> estimates = {};
  std::optional<sim::DriftOutcome> drift = {};
  std::optional<sim::FixedPointOutcome> fixed_point = {};
};

// Constants that are used for all problems.
// - unknown: stands for a missing value
// - z_interval: half width of a 95 % confidence interval, in standard errors
// - z_allowed: the distance of a measurement from its formula that is allowed, in standard errors; by chance, one check in
//   150,000 exceeds it
// - rounding: rounding error of fp32 sums of values near 1
inline constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
inline constexpr double z_interval = 1.96, z_allowed = 4.5;
inline constexpr double rounding = 1e-5;

// - off: measurement and formula differ by more than is allowed
// - unsure: there were too few steps for a verdict
// - control: a negative control, which may disagree with the formula
// - none: no formula is known
enum class CheckVerdict : uint8_t { ok = 0, off, unsure, control, none };
std::string_view name(CheckVerdict verdict);

struct LossCheck {
  std::string group;  // "estimates", "drift" or "fixed point"
  std::string what;
  double measured = 0;
  double interval = 0;  // half width of the 95 % confidence interval; NaN: unknown
  double formula = 0;   // what the formula gives; NaN: no formula is known
  double allowed = 0;  // allowed distance of measurement and formula: the tolerance or 4.5 standard errors, whichever is larger
  CheckVerdict verdict = CheckVerdict::none;
  std::string note = {};
};
std::vector<LossCheck> checks_of(const LossResult& result);

// Returns what the formulae give for O and P (see sim::Drift) with the updates of this run, in units of sigma_u^2. NaN: no
// formula is known.
sim::Drift expected_drift(const LossResult& result);
// Returns, for each of sim::estimators, by how much its estimates should deviate from the true mean on average. NaN: no formula
// is known.
std::vector<double> expected_deviations(const LossPlan& plan);

}  // namespace unisono::lab

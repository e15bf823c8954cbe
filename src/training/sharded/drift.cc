#include "training/sharded/drift.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace unisono {
namespace {

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
constexpr double infinite = std::numeric_limits<double>::infinity();

double recovery_of(const DriftLaw& law) { return law.recovery < 0 ? 1 - law.loss : law.recovery; }

bool is_possible(const DriftLaw& law) {
  const double p = law.loss, r = recovery_of(law);
  if (!(p >= 0 && p < 1) || !(std::abs(law.rho) <= 1) || !(r >= 0 && r <= 1)) return false;
  // Over a long time, as many ranges become lost as recover. Therefore p r <= 1 - p.
  return p * r <= (1 - p) * (1 + 1e-12) && law.both <= p && (law.both < 0 || law.both >= 2 * p - 1);
}

// Returns the second moment of the sum of `steps` successive updates. The unit is sigma_u^2, the second moment of one update.
double spread(uint64_t steps, double rho) {
  const auto m = static_cast<double>(steps);
  if (rho == 1) return m * m;
  // If rho is near 1, the closed form subtracts nearly equal numbers. In this case the terms are added up instead.
  if (1 - rho > 1e-3) return (m * (1 - rho * rho) - 2 * rho * (1 - std::pow(rho, m))) / ((1 - rho) * (1 - rho));
  double sum = m, power = rho;
  for (uint64_t s = 1; s < steps && power > 1e-17; ++s, power *= rho) sum += 2 * (m - static_cast<double>(s)) * power;
  return sum;
}

// Returns 1 + z + … + z^(terms - 1).
double geometric_sum(double z, uint32_t terms) { return z == 1 ? terms : -std::expm1(terms * std::log(z)) / (1 - z); }

// How old a range is at one receiver: P(age = m) = first * z^(m - 1) for 1 <= m < limit = A. A range is fetched before it would
// reach age A. It then has age 0, and in the next step age 1 if its link is still bad. Let p be the share of steps with a bad
// link. It includes the steps with fetches, so p is first * (1 + z + … + z^(A - 1)).
struct Ages {
  double first = 0, z = 0;
  uint64_t limit = 0;  // Ages are below this number.
};
Ages truncated_ages(const DriftLaw& law) {
  const double z = 1 - recovery_of(law);
  return {.first = law.loss / geometric_sum(z, law.stale_max), .z = z, .limit = law.stale_max};
}

// Calls visit(m, first * z^(m - 1)) for each age m until the terms are negligible.
template <typename Visit>
void each_age(const Ages& ages, Visit visit) {
  double share = ages.first;
  for (uint64_t m = 1; m < ages.limit && share > 1e-30; ++m, share *= ages.z) visit(m, share);
}

// Returns the sum over m >= 1 of spread(m) z^(m - 1).
double weighted_spread(double z, double rho) { return (1 + rho * z) / (1 - rho * z) / ((1 - z) * (1 - z)); }

// Returns the z for which the geometric distribution on 0, …, count - 1 has this mean. The mean grows with z, so the function
// uses bisection.
double truncated_geometric_ratio(double mean, uint32_t count) {
  const auto mean_at = [&](double z) {
    double all = 0, sum = 0, power = 1;
    for (uint32_t k = 0; k < count; ++k, power *= z) all += power, sum += k * power;
    return sum / all;
  };
  double low = 0, high = 1;
  for (int round = 0; round < 60; ++round) {
    const double middle = (low + high) / 2;
    (mean_at(middle) < mean ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

double owner_drift(const DriftLaw& law) {
  if (!is_possible(law)) return unknown;
  if (law.loss == 0) return 0;
  if (law.stale_max == 0) {
    const double r = recovery_of(law);
    if (r == 0) return infinite;
    return law.loss * r * weighted_spread(1 - r, law.rho);
  }
  double sum = 0;
  each_age(truncated_ages(law), [&](uint64_t m, double share) { sum += share * spread(m, law.rho); });
  return sum;
}

// Two replicas of a range differ by as many updates as their ages differ.
double pair_drift(const DriftLaw& law) {
  if (!is_possible(law)) return unknown;
  const double p = law.loss, r = recovery_of(law), z = 1 - r;
  if (law.both >= 0) {
    // Consider the last step in which at least one of the two receivers got the range. With probability 2(p - c)/(1 - c), the
    // other receiver did not get it then. The age at that receiver has a geometric distribution.
    if (law.recovery >= 0 || law.stale_max != 0) return unknown;
    return p == 0 ? 0 : 2 * (p - law.both) / (1 - law.both) * (1 - p) * weighted_spread(p, law.rho);
  }
  if (p == 0) return 0;
  if (law.stale_max == 0) {
    // Let k1 and k2 be the ages at two receivers. Then P(|k1 - k2| = m) = 2 z^(m-1) [(1 - p) p r + p^2 r^2 z / (1 - z^2)].
    if (r == 0) return infinite;
    return 2 * p * r * (1 - p + p * r * z / (1 - z * z)) * weighted_spread(z, law.rho);
  }
  const auto ages = truncated_ages(law);
  double stale = 0, sum = 0;
  each_age(ages, [&](uint64_t, double share) { stale += share; });
  // If both replicas are stale and their ages differ by m, the smaller age is between 1 and A - 1 - m.
  each_age(ages, [&](uint64_t m, double share) {
    const auto pairs = static_cast<uint32_t>(ages.limit - 1 - m);
    const double both = pairs == 0 ? 0 : ages.first * share * ages.z * geometric_sum(ages.z * ages.z, pairs);
    sum += 2 * ((1 - stale) * share + both) * spread(m, law.rho);
  });
  return sum;
}

double fetches_per_step(const DriftLaw& law) {
  if (!is_possible(law)) return unknown;
  if (law.stale_max == 0 || law.loss == 0) return 0;
  const auto ages = truncated_ages(law);
  return ages.first * std::pow(ages.z, law.stale_max - 1);
}

double owner_drift_after(double loss, uint32_t steps) { return loss * (1 - std::pow(loss, steps)) / (1 - loss); }

double pair_drift_after(double loss, uint32_t steps) {
  return 2 * loss / (1 - loss * loss) * (1 - std::pow(loss, steps)) * (1 - std::pow(loss, steps + 1.0));
}

double pair_mean(uint32_t world, double owner, double pair) {
  if (world < 3) return world == 2 ? owner : 0;
  const double n = world;
  return (n - 2) / n * pair + 2 / n * owner;
}

double consensus_distance(uint32_t world, double owner, double pair) {
  if (world < 2) return 0;
  const double n = world;
  return ((n - 1) * owner + (world == 2 ? 0 : (n - 1) * (n - 2) / 2 * pair)) / (n * n);
}

double paper_form(double loss) { return 2 * loss / (1 + loss); }

double difference_drift(double loss, uint64_t steps) { return 2 * loss * (1 - loss) * static_cast<double>(steps); }

double recovery_from_ages(std::span<const uint64_t> histogram, uint32_t age_limit) {
  if (histogram.size() < 3 || age_limit == 1 || histogram.size() <= age_limit) return unknown;
  const size_t last = histogram.size() - 1;
  double stale = 0, steps_more = 0;
  for (size_t age = 1; age <= last; ++age) {
    const auto count = static_cast<double>(histogram[age]);
    stale += count;
    steps_more += count * static_cast<double>(age - 1);
  }
  if (stale == 0) return unknown;
  if (age_limit != 0) return 1 - truncated_geometric_ratio(steps_more / stale, age_limit);
  // The last entry of the histogram counts ranges whose recovery was not observed.
  const double recovered = stale - static_cast<double>(histogram[last]);
  return recovered / (recovered + steps_more);
}

void UpdateStatistics::add(std::span<const float> updates) {
  if (updates.empty() || window_ == 0) return;
  if (updates.size() != last_.size()) {
    last_.assign(updates.size(), 0.0f);
    squares_.assign(window_, 0.0);
    products_.assign(window_, 0.0);
    steps_ = 0;
  }
  double squares = 0, products = 0;
  for (size_t i = 0; i < updates.size(); ++i) {
    squares += double{updates[i]} * updates[i];
    products += double{updates[i]} * last_[i];
  }
  squares_[steps_ % window_] = squares / static_cast<double>(updates.size());
  products_[steps_ % window_] = products / static_cast<double>(updates.size());
  std::copy(updates.begin(), updates.end(), last_.begin());
  ++steps_;
}

double UpdateStatistics::second_moment() const {
  const auto count = std::min<uint64_t>(steps_, window_);
  if (count == 0) return unknown;
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += squares_[i];
  return sum / static_cast<double>(count);
}

// Each product multiplies the updates of a step with those of the step before it. The first step has no step before it. Its
// product is stored as 0, and the mean does not count it.
double UpdateStatistics::autocorrelation() const {
  const auto count = std::min<uint64_t>(steps_, window_);
  const double second = second_moment();
  if (count < 2 || !(second > 0)) return 0;
  double sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += products_[i];
  const auto pairs = static_cast<double>(steps_ > window_ ? count : count - 1);
  return std::clamp(sum / pairs / second, -1.0, 1.0);
}

}  // namespace unisono

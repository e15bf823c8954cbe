#include "lab/averaging/averaging_law.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace unisono::sim {
namespace {

// Returns the probability that k of n independent events happen, if each happens with probability p. The function uses
// logarithms, because powers of small numbers would underflow.
double binomial(uint32_t n, uint32_t k, double p) {
  if (p <= 0) return k == 0 ? 1 : 0;
  if (p >= 1) return k == n ? 1 : 0;
  return std::exp(std::lgamma(n + 1.) - std::lgamma(k + 1.) - std::lgamma(n - k + 1.) + k * std::log(p) +
                  (n - k) * std::log1p(-p));
}

}  // namespace

double full_grid_variance(uint32_t group, uint32_t axes, uint32_t round) {
  return round >= axes ? 0 : std::pow(group, -static_cast<double>(round)) - std::pow(group, -static_cast<double>(axes));
}

double random_split_factor(std::span<const uint32_t> sizes) {
  double peers = 0;
  for (const uint32_t size : sizes) peers += size;
  return peers <= 1 ? 0 : (static_cast<double>(sizes.size()) - 1) / (peers - 1);
}

double attributed_split_factor(uint32_t peers, uint32_t groups) {
  const double n = peers, r = groups;
  return (r - 1) / n + r / (n * n);
}

double random_groups_factor(const AbsenceCase& one) {
  double factor = 0;
  // An absent peer counts as a group with one member.
  for (uint32_t absent = 0; absent <= one.peers; ++absent) {
    const uint32_t there = one.peers - absent, groups = there == 0 ? 0 : std::max(1u, there / one.group);
    factor += binomial(one.peers, absent, one.absence) * (static_cast<double>(groups) + absent - 1) / (one.peers - 1.);
  }
  return factor;
}

double random_groups_variance(const AbsenceCase& one, uint32_t rounds) {
  return (1 - 1. / one.peers) * std::pow(random_groups_factor(one), rounds);
}

uint32_t random_groups_rounds(const AbsenceCase& one, double share) {
  const double factor = random_groups_factor(one);
  if (factor <= 0) return 1;
  const double rounds = std::ceil(std::log(share) / std::log(factor));
  return factor >= 1 || rounds >= UINT32_MAX ? UINT32_MAX : std::max(1u, static_cast<uint32_t>(rounds));
}

double first_round_variance(const AbsenceCase& one, uint32_t lines) {
  return (lines + one.absence * one.peers - 1) / one.peers;
}

double restarted_rounds(const AbsenceCase& one, uint32_t cap) {
  const double all_there = std::pow(1 - one.absence, one.peers);
  return all_there <= 0 ? cap : -std::expm1(cap * std::log1p(-all_there)) / all_there;
}

double ring_variance(uint32_t peers, uint32_t rounds) {
  double sum = 0;
  for (uint32_t k = 1; k < peers; ++k) sum += std::pow((1 + 2 * std::cos(2 * std::numbers::pi * k / peers)) / 3, 2. * rounds);
  return sum / peers;
}

}  // namespace unisono::sim

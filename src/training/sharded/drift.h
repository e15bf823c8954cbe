// The distance of replicas from the owners' values and from each other: formulae and measurement. Drift is the mean squared
// difference per element.
//
// The formulae for owner against replica (O) and for two replicas (P) are derived for values that are broadcast, where a lost
// value leaves the old one (docs/design/methods/packet_loss.md, "Drift"). paper_form() is the form that later write-ups
// attribute to arXiv 2507.07114, unconfirmed. It holds for another sigma^2, see there.
// there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct DriftLaw {
  double loss = 0;         // p: probability that a range is lost at one receiver in one step
  double rho = 0;          // autocorrelation of updates: rho^s between updates s steps apart
  double recovery = -1;    // r: probability that a lost range arrives in the next step; < 0: 1 - p, independent over time
  double both = -1;        // c: probability that two receivers both miss a range; < 0: p * p, independent
  uint32_t stale_max = 0;  // A: a range is fetched on reaching this age, so that it never has it; 0: never fetched
};
// In units of sigma_u^2, the second moment of one update (not about its mean). NaN if no formula is known: pair_drift with
// `both` and (recovery or stale_max). NaN also for an impossible law: p outside [0, 1), |rho| > 1, or r or c incompatible with
// p. Infinite if a lost range never arrives again.
double owner_drift(const DriftLaw& law);
double pair_drift(const DriftLaw& law);
// Reliable fetches per range and step.
double fetches_per_step(const DriftLaw& law);
// Drift `steps` steps after all replicas were equal; rho = 0, independent losses.
double owner_drift_after(double loss, uint32_t steps);
double pair_drift_after(double loss, uint32_t steps);
// For the whole vector of `world` equal shards, computed from O and P: the mean over all pairs of ranks, and (1/N) sum |x_i -
// mean|^2. 0 for one rank.
double pair_mean(uint32_t world, double owner, double pair);
double consensus_distance(uint32_t world, double owner, double pair);
double paper_form(double loss);  // 2p / (1 + p)
// Drift of two replicas that add differences instead of taking values: a random walk, 2 p (1 - p) per step.
double difference_drift(double loss, uint64_t steps);

// Estimates recovery r from the numbers of ranges per age ([0], [1], …; the last entry counts all older ones): the r for which
// P(age >= m) = p (1 - r)^(m - 1) fits best (maximum likelihood). age_limit: no range gets older, because it is fetched then;
// 0: none. NaN: no stale range; fewer than three entries; a limit of 1; or fewer entries than limit + 1.
double recovery_from_ages(std::span<const uint64_t> histogram, uint32_t age_limit = 0);

// sigma_u^2 and rho of the owner's updates, from a sample of elements per step, over the last `window` steps.
class UpdateStatistics {
 public:
  explicit UpdateStatistics(uint32_t window = 1000) : window_(window) {}
  // The same elements in every call; another number of elements starts again.
  void add(std::span<const float> updates);
  // NaN before the first call.
  double second_moment() const;
  // Correlation of successive updates, about 0; 0 before there are two, and if nothing changes.
  double autocorrelation() const;
  uint64_t steps() const { return steps_; }

 private:
  uint32_t window_;
  uint64_t steps_ = 0;
  std::vector<float> last_;
  std::vector<double> squares_, products_;  // ring buffers, by step; products_ with the previous step
};

}  // namespace unisono

// How far replicas are from the owners' values, and from each other: the formulae, and what is measured. Drift is the mean
// squared difference per element.
//
// Owner against replica O and two replicas P are derived for values that are broadcast and kept where they are lost
// (docs/design/methods/packet_loss.md, "Drift").
// paper_form() is the form that later write-ups attribute to arXiv 2507.07114, unconfirmed: it holds for another sigma^2, see
// there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace unisono {

struct DriftLaw {
  double loss = 0;  // p: of a range, at one receiver, in one step
  double rho = 0;   // autocorrelation of updates: rho^s between steps that are s apart
  double recovery =
      -1;            // r: chance that a range that was lost arrives in the next step; < 0: 1 - p, losses independent over time
  double both = -1;  // c: chance that two receivers both miss a range; < 0: p * p, independent
  uint32_t stale_max = 0;  // A: fetched at this age, so that it is never seen; 0 = never fetched
};
// In units of sigma_u^2, the second moment of one update (not about its mean). NaN where no formula is known, which is
// pair_drift with `both` and (recovery or stale_max); and where a law cannot be: p outside [0, 1), |rho| > 1, r or c that p
// does not allow. Infinite where a range that was lost never arrives again.
double owner_drift(const DriftLaw& law);
double pair_drift(const DriftLaw& law);
// Reliable fetches per range and step.
double fetches_per_step(const DriftLaw& law);
// `steps` after all were equal; rho = 0, losses independent.
double owner_drift_after(double loss, uint32_t steps);
double pair_drift_after(double loss, uint32_t steps);
// Over the whole vector of `world` equal shards, from O and P: mean over all pairs of ranks, and (1/N) sum |x_i - mean|^2. 0
// for one rank.
double pair_mean(uint32_t world, double owner, double pair);
double consensus_distance(uint32_t world, double owner, double pair);
double paper_form(double loss);  // 2p / (1 + p)
// Of two replicas that add differences instead of taking values: a random walk, 2 p (1 - p) per step.
double difference_drift(double loss, uint64_t steps);

// From how many ranges have which age ([0], [1], …, the last entry counts all older ones): the recovery r of the chain whose
// P(age >= m) = p (1 - r)^(m - 1) fits them best (maximum likelihood). age_limit: no range can be older, because it is fetched
// then; 0 = none. NaN: no range is stale; fewer than three entries; a limit of 1; or fewer entries than limit + 1.
double recovery_from_ages(std::span<const uint64_t> histogram, uint32_t age_limit = 0);

// sigma_u^2 and rho of the owner's updates, from a sample of its elements step by step, over the last `window` steps.
class UpdateStatistics {
 public:
  explicit UpdateStatistics(uint32_t window = 1000) : window_(window) {}
  // The same elements as before; another number of them begins anew.
  void add(std::span<const float> updates);
  // NaN before the first.
  double second_moment() const;
  // Of neighbouring steps, about 0; 0 before there are two, and if nothing moves.
  double autocorrelation() const;
  uint64_t steps() const { return steps_; }

 private:
  uint32_t window_;
  uint64_t steps_ = 0;
  std::vector<float> last_;
  std::vector<double> squares_, products_;  // rings, by step; products_ with the step before
};

}  // namespace unisono

#include "lab/loss/loss_law.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "training/sharded/drift.h"

namespace unisono::sim {
namespace {

using Kind = LossModel::Kind;

constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
constexpr Rank nobody = ~Rank{0};
constexpr double forgotten = 1e-3;  // two states of a link are treated as independent if their correlation is lower than this

bool cuts_off(const LossModel& model) { return !model.dead.empty() || !model.slow.empty(); }

// Returns P(R = 0), P(R = 1), … where R is the number of contributions that arrive. Two ranks are left out.
std::vector<double> arrivals_law(std::span<const double> losses, Rank without, Rank also_without) {
  std::vector<double> law{1};
  for (Rank rank = 0; rank < losses.size(); ++rank) {
    if (rank == without || rank == also_without) continue;
    law.push_back(0);
    for (size_t r = law.size() - 1; r > 0; --r) law[r] = law[r] * losses[rank] + law[r - 1] * (1 - losses[rank]);
    law[0] *= losses[rank];
  }
  return law;
}

// Computes how many contributions arrive from all ranks except two: `apart`, and the argument of without(). The last result is
// kept, and used again for a rank with the same loss.
class OthersLaw {
 public:
  OthersLaw(const EstimateCase& one, Rank apart) : one_(one), apart_(apart) {}
  const std::vector<double>& without(Rank rank) {
    if (law_.empty() || one_.losses[rank] != loss_) law_ = arrivals_law(one_.losses, apart_, rank);
    loss_ = one_.losses[rank];
    return law_;
  }

 private:
  const EstimateCase& one_;
  Rank apart_;
  std::vector<double> law_;
  double loss_ = 0;
};

double weight_of_own(const EstimateCase& one, double received) {
  const auto world = static_cast<double>(one.values.size());
  return one.estimator == Estimator::count ? 1 / (1 + received) : 1 / world;
}

// Returns the weight that each contribution has if `received` contributions arrived.
double weight_of_received(const EstimateCase& one, double received) {
  const auto world = static_cast<double>(one.values.size());
  switch (one.estimator) {
    case Estimator::stratified: return (world - 1) / world / received;
    case Estimator::count: return 1 / (1 + received);
    case Estimator::count_all: return 1 / received;
    case Estimator::horvitz_thompson: return 1 / (world * (1 - one.known_loss));
    case Estimator::zero_fill: return 1 / world;
  }
  return 0;
}

// Returns the mean of count_all's estimate, given that at least one contribution arrived.
double mean_of_all(const EstimateCase& one) {
  double mean = 0;
  OthersLaw others(one, nobody);
  for (Rank rank = 0; rank < one.values.size(); ++rank) {
    const auto& law = others.without(rank);
    for (size_t k = 0; k < law.size(); ++k)
      mean += (1 - one.losses[rank]) * law[k] / static_cast<double>(k + 1) * one.values[rank];
  }
  return mean / (1 - arrivals_law(one.losses, nobody, nobody)[0]);
}

// Returns the mean of an estimate, given that a contribution of another rank arrived. This is the sum, over all ranks, of the
// rank's value times its expected weight. If a contribution is lost, its weight is 0.
double mean_given_arrival(const EstimateCase& one) {
  const auto law = arrivals_law(one.losses, one.owner, one.owner);
  double mean = 0, some = 0;
  for (size_t r = 1; r < law.size(); ++r) {
    some += law[r];
    mean += law[r] * weight_of_own(one, static_cast<double>(r)) * one.values[one.owner];
  }
  OthersLaw others(one, one.owner);
  for (Rank rank = 0; rank < one.values.size(); ++rank) {
    if (rank == one.owner) continue;
    double weight = 0;
    for (size_t r = 0; r < others.without(rank).size(); ++r)
      weight += others.without(rank)[r] * weight_of_received(one, static_cast<double>(r + 1));
    mean += (1 - one.losses[rank]) * weight * one.values[rank];
  }
  return mean / some;
}

struct Moments {
  double mean = 0, variance = 0;  // variance: the sample variance
};
Moments moments_of(std::span<const double> values, size_t without) {
  Moments moments;
  double count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != without) moments.mean += values[i], ++count;
  }
  moments.mean /= count;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != without) moments.variance += (values[i] - moments.mean) * (values[i] - moments.mean);
  }
  moments.variance = count > 1 ? moments.variance / (count - 1) : 0;
  return moments;
}

// Returns F(p), the sum over all ages m of f(m) p^m, where f(m) is the second moment of a sum of m updates. Source: the proof
// in docs/design/methods/packet_loss.md, "Drift".
double weighted_ages(double p, double rho) { return p / ((1 - p) * (1 - p)) * (1 + rho * p) / (1 - rho * p); }
double owner_of_link(double p, double rho) { return (1 - p) * weighted_ages(p, rho); }
// Returns the second moment of the difference of two replicas. The ages k1 and k2 of the two copies are independent and
// geometric. For m >= 0, P(k1 - k2 = m) = (1-p1)(1-p2) p1^m / (1 - p1 p2). P(k2 - k1 = m) is the same with p2^m instead of
// p1^m.
double pair_of_links(double p1, double p2, double rho) {
  return (1 - p1) * (1 - p2) / (1 - p1 * p2) * (weighted_ages(p1, rho) + weighted_ages(p2, rho));
}

Drift drift_of_links(const LossModel& model, const DriftCase& one) {
  if (one.stale_max > 0) return {unknown, unknown};
  Drift sum;
  for (Rank owner = 0; owner < one.world; ++owner) {
    for (Rank first = 0; first < one.world; ++first) {
      if (first == owner) continue;
      const double p = model.link_loss(owner, first);
      sum.owner += owner_of_link(p, one.rho);
      for (Rank second = 0; second < first; ++second) {
        if (second != owner) sum.pair += pair_of_links(p, model.link_loss(owner, second), one.rho);
      }
    }
  }
  const double world = one.world, links = world * (world - 1), pairs = links * (world - 2) / 2;
  return {sum.owner / links, pairs > 0 ? sum.pair / pairs : unknown};
}

// Returns how often the two-state chain of a link changes or keeps its state in one step.
double moves_per_step(const LossModel& model, uint32_t ranges) {
  return model.granularity == LossModel::Granularity::shard ? 2 : 2. * ranges;
}

// Returns the correlation between the states of a link in two consecutive steps.
double memory(const LossModel& model, uint32_t ranges) {
  if (model.kind == Kind::chain) return 1 - model.fall() - model.recovery;
  if (model.kind != Kind::gilbert_elliott) return 0;
  return std::pow(1 - model.fall() - 1 / model.burst, moves_per_step(model, ranges));
}

DriftLaw law_of(const LossModel& model, const DriftCase& one) {
  DriftLaw law{.loss = model.kind == Kind::none ? 0 : model.loss, .rho = one.rho, .stale_max = one.stale_max};
  if (model.kind == Kind::joint) law.both = model.both;
  // If every k-th state of a chain is taken, the result is again a chain. Its correlation is the k-th power of the first one.
  const double kept = memory(model, one.ranges);
  if (std::abs(kept) >= forgotten) law.recovery = (1 - law.loss) * (1 - kept);
  return law;
}

// True if a link's state lasts for several steps, but does not alone decide which datagrams are lost. For this case, no formula
// for the ages is known.
bool is_hidden_chain(const LossModel& model, uint32_t ranges) {
  return model.kind == Kind::gilbert_elliott && (model.good > 0 || model.bad < 1) &&
         std::abs(memory(model, ranges)) >= forgotten;
}

}  // namespace

double estimate_mean(const EstimateCase& one) {
  return one.estimator == Estimator::count_all ? mean_of_all(one) : mean_given_arrival(one);
}

double estimate_variance(const EstimateCase& one) {
  for (const double loss : one.losses) {
    if (loss != one.losses[0]) return unknown;
  }
  const bool all = one.estimator == Estimator::count_all;
  const Rank apart = all ? nobody : one.owner;
  const auto drawn = moments_of(one.values, apart);
  const auto law = arrivals_law(one.losses, apart, apart);
  const double own = all ? 0 : one.values[one.owner], most = static_cast<double>(law.size() - 1);
  double some = 0, mean = 0, square = 0;
  for (size_t i = 1; i < law.size(); ++i) {
    // If the number of arrivals is given, the ranks whose contributions arrive are a random draw without replacement.
    const auto r = static_cast<double>(i);
    const double weight = all ? 1 : r * weight_of_received(one, r);
    const double value = weight_of_own(one, r) * own + weight * drawn.mean;
    some += law[i];
    mean += law[i] * value;
    square += law[i] * (value * value + weight * weight * drawn.variance * (1 / r - 1 / most));
  }
  mean /= some;
  return square / some - mean * mean;
}

BranchShares branch_shares(std::span<const double> losses, Rank owner) {
  const auto law = arrivals_law(losses, owner, owner);
  return {.full = law.back(), .reduced = 1 - law.back() - law.front(), .empty = law.front()};
}

double mean_loss(const LossModel& model, uint32_t world) {
  if (model.kind != Kind::links) return model.kind == Kind::none ? 0 : model.loss;
  double sum = 0;
  for (Rank sender = 0; sender < world; ++sender) {
    for (Rank receiver = 0; receiver < world; ++receiver) sum += sender == receiver ? 0 : model.link_loss(sender, receiver);
  }
  return sum / (static_cast<double>(world) * (world - 1));
}

bool is_equal_loss(const LossModel& model) { return !cuts_off(model) && model.kind != Kind::links; }
bool forgets_between_steps(const LossModel& model, uint32_t ranges) {
  return !cuts_off(model) && std::abs(memory(model, ranges)) < forgotten;
}

Drift drift_of(const LossModel& model, const DriftCase& one) {
  if (cuts_off(model) || is_hidden_chain(model, one.ranges)) return {unknown, unknown};
  if (model.kind == Kind::links) return drift_of_links(model, one);
  const auto law = law_of(model, one);
  return {owner_drift(law), one.world > 2 ? pair_drift(law) : unknown};
}

// E is the mean squared difference of two replicas. In each step, this happens to a range that a third rank owns:
// - With probability c, both replicas miss the range. Then their squared difference is still E on average.
// - With probability 2 (p - c), exactly one of them receives the range. Then their squared difference is s on average.
//
// In all other cases both receive it, and the difference is 0. So E = c E + 2 (p - c) s. The function returns E / s, which is
// exact if losses do not depend on earlier losses.
double pair_over_fresh(const LossModel& model, const DriftCase& one) {
  if (!is_equal_loss(model) || !forgets_between_steps(model, one.ranges) || one.stale_max > 0) return unknown;
  if (model.kind != Kind::joint) return paper_form(model.kind == Kind::none ? 0 : model.loss);
  return 2 * (model.loss - model.both) / (1 - model.both);
}

double fetches_of(const LossModel& model, const DriftCase& one) {
  if (!is_equal_loss(model) || is_hidden_chain(model, one.ranges)) return unknown;
  auto law = law_of(model, one);
  law.rho = 0;
  return fetches_per_step(law);
}

double settling_steps(const LossModel& model, const DriftCase& one) {
  constexpr double times = 10;  // how many time constants to wait; e^-10 is less than 1/20,000
  double recovery = 1;
  if (model.kind == Kind::links) {
    for (Rank owner = 0; owner < one.world; ++owner) {
      for (Rank receiver = 0; receiver < one.world; ++receiver)
        recovery = std::min(recovery, owner == receiver ? 1 : 1 - model.link_loss(owner, receiver));
    }
  } else {
    const auto law = law_of(model, one);
    recovery = law.recovery < 0 ? 1 - law.loss : law.recovery;
  }
  double steps = 1 / recovery;
  if (one.stale_max > 0) steps = std::min<double>(steps, one.stale_max);
  return times * std::max(steps, 1 / (1 - one.rho));
}

double mean_age(const LossModel& model, const DriftCase& one) {
  auto still = one;
  still.rho = 0;
  return drift_of(model, still).owner;  // with rho = 0, each step of age adds an independent update, so O equals the mean age
}

}  // namespace unisono::sim

// Formulae for losses under a LossModel: the mean and the variance of an estimate, and the drift of replicas (how far copies
// differ from their owners and from each other). A result is NaN if no formula is known.
//
// Sources: docs/design/methods/packet_loss.md, "The estimator" and "Drift". If links have different losses, the formulae are
// derived in the code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/loss_model.h"
#include "unisono/delivery.h"

namespace unisono::sim {

// The facts on which the estimate of one range depends.
struct EstimateCase {
  Estimator estimator = Estimator::stratified;
  std::span<const double> values{};  // by rank: the value that the rank contributes
  // By rank: the loss of the link from this rank to the owner. Only count_all uses the owner's entry.
  std::span<const double> losses{};
  Rank owner = 0;
  double known_loss = 0;  // the loss rate p with which horvitz_thompson computes
};
// Returns the mean of the estimate, given that a contribution of another rank arrived (for count_all: that any contribution
// arrived). Links may have different losses.
double estimate_mean(const EstimateCase& one);
// Returns the variance of the estimate under the same condition as estimate_mean(). NaN if the losses are not all equal.
double estimate_variance(const EstimateCase& one);

struct BranchShares {
  double full = 0, reduced = 0, empty = 0;
};
BranchShares branch_shares(std::span<const double> losses, Rank owner);

// Returns the mean loss of all links from one rank to another.
double mean_loss(const LossModel& model, uint32_t world);
// is_equal_loss(): true if all links have the same loss. forgets_between_steps(): true if the losses of one step do not depend
// on those of the step before.
bool is_equal_loss(const LossModel& model);
bool forgets_between_steps(const LossModel& model, uint32_t ranges);

// Mean squared differences, in units of the second moment of an update. owner: O, the difference between an owner and a
// replica. pair: P, the difference between two replicas. Updates that are s steps apart have the correlation rho^|s|.
struct Drift {
  double owner = 0, pair = 0;
};
struct DriftCase {
  double rho = 0;
  uint32_t world = 2;
  uint32_t ranges = 1;  // ranges in each shard; this is also the number of datagrams on a link in one phase of a step
  uint32_t stale_max = 0;
};
Drift drift_of(const LossModel& model, const DriftCase& one);
// Returns P / s, where s is the second moment of (fresh value - stale copy) in the cases in which exactly one of two receivers
// got the range. P / s is 2p/(1+p) if losses are independent, and less if both receivers share losses.
double pair_over_fresh(const LossModel& model, const DriftCase& one);
// Returns how many times a range of another rank's shard is fetched reliably in one step, on average.
double fetches_of(const LossModel& model, const DriftCase& one);
// Returns how many steps it takes until drift is within 1/20,000 of its stationary value, if all replicas are equal at the
// start. Infinite if drift never becomes stationary.
double settling_steps(const LossModel& model, const DriftCase& one);
// Returns how old a range of another rank's shard is on average, in steps.
double mean_age(const LossModel& model, const DriftCase& one);

}  // namespace unisono::sim

// Formulae for losses under a LossModel: the mean and the variance of an estimator, and how far replicas drift.
//
// Sources: docs/design/methods/packet_loss.md, "The estimator" and "Drift" (derived there). The formulae for unequal links are
// derived beside the code. NaN: no formula is known.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/loss_model.h"
#include "unisono/delivery.h"

namespace unisono::sim {

// The inputs of the estimate of one range.
struct EstimateCase {
  Estimator estimator = Estimator::stratified;
  std::span<const double> values{};  // by rank, fixed
  std::span<const double> losses{};  // of the link from each rank; the owner's entry is for count_all
  Rank owner = 0;
  double known_loss = 0;  // the p that horvitz_thompson assumes
};
// The mean of the estimate, given that something arrived from others (count_all: from anybody); losses may differ.
double estimate_mean(const EstimateCase& one);
// Its variance; NaN unless all losses are equal.
double estimate_variance(const EstimateCase& one);

struct BranchShares {
  double full = 0, reduced = 0, empty = 0;
};
BranchShares branch_shares(std::span<const double> losses, Rank owner);

// Mean loss of all links between different ranks.
double mean_loss(const LossModel& model, uint32_t world);
// All links lose alike, and what they lose in one step says nothing about the next.
bool is_equal_loss(const LossModel& model);
bool forgets_between_steps(const LossModel& model, uint32_t ranges);

// Owner against replica, and two replicas, in units of the second moment of an update; updates have the autocorrelation
// rho^|s|.
struct Drift {
  double owner = 0, pair = 0;
};
struct DriftCase {
  double rho = 0;
  uint32_t world = 2;
  uint32_t ranges = 1;  // of a shard: how many datagrams a link carries per step and phase
  uint32_t stale_max = 0;
};
Drift drift_of(const LossModel& model, const DriftCase& one);
// P over the second moment of (fresh value minus stale copy) where just one of two receivers received: 2p/(1+p), with common
// losses less.
double pair_over_fresh(const LossModel& model, const DriftCase& one);
// Reliable fetches per step and range of another rank's shard.
double fetches_of(const LossModel& model, const DriftCase& one);
// Steps until the drift of replicas that start equal is within 1/20,000 of its stationary value; infinite: it never settles.
double settling_steps(const LossModel& model, const DriftCase& one);
// The mean age of a range of another rank's shard, in steps.
double mean_age(const LossModel& model, const DriftCase& one);

}  // namespace unisono::sim

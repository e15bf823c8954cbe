#include "lab/loss/loss_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "training/sharded/drift.h"

namespace unisono::lab {
namespace {

using sim::BlockMeans;

// The tolerances of checks A2, B1 and B2 of docs/design/methods/packet_loss.md, as fractions of what the formula gives.
constexpr double variance_tolerance = .02, drift_tolerance = .05, correlated_drift_tolerance = .1, fresh_tolerance = .03;

// A measured value, and what the formula gives for it. judge() compares the two.
struct Claim {
  std::string what;
  double measured = unknown, error = unknown, formula = unknown;
  size_t blocks = 0;
  double tolerance = 0;  // as a fraction of what the formula gives; 0: only the standard error decides
  double rounding = 0;   // a further tolerance, which is absolute, for rounding errors
  bool control = false;
  // how many steps it takes until the value is stationary; if the burn-in is shorter, there is no verdict
  double settles_after = 0;
  std::string note = {};
};

Claim claim_of(std::string what, const BlockMeans& measured, double formula) {
  return {.what = std::move(what),
          .measured = measured.empty() ? unknown : measured.mean(),
          .error = measured.standard_error(),
          .formula = formula,
          .blocks = measured.blocks()};
}

// True if fewer than 100 losses are expected in all measured steps. In this case, their number may by chance be further from
// its mean than the standard error over the blocks shows.
bool is_rare(const LossPlan& plan) {
  constexpr double losses_min = 100;
  const auto& s = plan.settings;
  const double loss = sim::mean_loss(s.ranks.model, s.ranks.peers),
               links = static_cast<double>(s.ranks.peers) * (s.ranks.peers - 1);
  return loss > 0 &&
         loss * links * s.ranks.ranges * static_cast<double>((s.steps - s.burn_in) * plan.seeds.size()) < losses_min;
}

LossCheck judge(const LossPlan& plan, const std::string& group, const Claim& claim) {
  const double by_chance = claim.error == 0 ? 0 : sim::student(z_allowed, claim.blocks) * claim.error,
               tolerance = claim.tolerance * std::abs(claim.formula);
  LossCheck check{.group = group,
                  .what = claim.what,
                  .measured = claim.measured,
                  .interval = claim.error == 0 ? 0 : sim::student(z_interval, claim.blocks) * claim.error,
                  .formula = claim.formula,
                  .note = claim.note};
  check.allowed = std::max({tolerance, by_chance, claim.rounding});
  const bool apart = !(std::abs(claim.measured - claim.formula) <= check.allowed);
  if (!std::isfinite(claim.measured) || !std::isfinite(claim.formula)) check.verdict = CheckVerdict::none;
  else if (claim.control) check.verdict = CheckVerdict::control;
  else if (claim.settles_after > static_cast<double>(plan.settings.burn_in)) check.verdict = CheckVerdict::unsure;
  else if (!std::isfinite(claim.error) ||
           (claim.tolerance > 0 && claim.error > tolerance / 3 && !apart && claim.error > claim.rounding))
    check.verdict = CheckVerdict::unsure;
  else check.verdict = apart ? CheckVerdict::off : CheckVerdict::ok;
  if (check.verdict == CheckVerdict::none) check.allowed = unknown;
  if (check.verdict == CheckVerdict::off && is_rare(plan)) {
    check.verdict = CheckVerdict::unsure;
    check.note = "too few losses for a verdict";
  }
  if (check.verdict == CheckVerdict::unsure && claim.settles_after > static_cast<double>(plan.settings.burn_in))
    check.note = std::isfinite(claim.settles_after)
                     ? fmt::format("not settled: needs --burn-in {:.0f}", std::ceil(claim.settles_after))
                     : "never settles";
  return check;
}

bool has_law(const sim::LossModel& model) { return model.dead.empty() && model.slow.empty(); }

// Returns the losses of the links to the owner. They are ordered by the sender's distance from the owner, as in
// fixed_gradients().
std::vector<double> losses_to(const sim::LossModel& model, Rank owner, uint32_t world) {
  std::vector<double> losses;
  for (uint32_t distance = 0; distance < world; ++distance)
    losses.push_back(model.link_loss((owner + distance) % world, owner));
  return losses;
}

// Returns the mean of `value` over all owners. If all links have the same loss, `value` is computed for one owner only.
template <typename Value>
double over_owners(const LossPlan& plan, const Value& value) {
  const auto& ranks = plan.settings.ranks;
  if (!has_law(ranks.model)) return unknown;
  const uint32_t owners = sim::is_equal_loss(ranks.model) ? 1 : ranks.peers;
  double sum = 0;
  for (Rank owner = 0; owner < owners; ++owner) sum += value(losses_to(ranks.model, owner, ranks.peers));
  return sum / owners;
}

bool is_biased(Estimator estimator, const sim::LossModel& model) {
  if (estimator == Estimator::count || estimator == Estimator::zero_fill) return true;
  return !sim::is_equal_loss(model) && model.kind != sim::LossModel::Kind::none;
}

sim::DriftCase drift_case(const LossPlan& plan, double rho) {
  const auto& ranks = plan.settings.ranks;
  return {.rho = rho, .world = ranks.peers, .ranges = ranks.ranges, .stale_max = ranks.stale_max};
}

double settling(const LossPlan& plan) {
  return has_law(plan.settings.ranks.model)
             ? sim::settling_steps(plan.settings.ranks.model, drift_case(plan, plan.settings.rho))
             : 0;
}
// Like settling(), but for a value that depends only on the losses of one step. It is necessary to wait until the losses are
// stationary, because losses that last longer than a block of steps would make the standard error too small.
double settling_of_losses(const LossPlan& plan) {
  const auto& ranks = plan.settings.ranks;
  return !has_law(ranks.model) || sim::forgets_between_steps(ranks.model, ranks.ranges)
             ? 0
             : sim::settling_steps(ranks.model, {.world = ranks.peers, .ranges = ranks.ranges});
}

// --- estimates ---------------------------------------------------------------------------------------------------------

void add_estimators(const LossPlan& plan, const sim::EstimatesOutcome& outcome, std::vector<LossCheck>& checks) {
  const auto& model = plan.settings.ranks.model;
  const auto values = sim::fixed_gradients(plan.settings.ranks.peers);
  const auto expected = expected_deviations(plan);
  for (size_t i = 0; i < sim::estimators.size(); ++i) {
    const auto estimator = sim::estimators[i];
    auto deviation = claim_of(fmt::format("deviation of {}", sim::name(estimator)), outcome.of[i].deviation, expected[i]);
    deviation.rounding = rounding * (1 + plan.settings.ranks.peers / 64.);
    deviation.control = is_biased(estimator, model);
    deviation.settles_after = settling_of_losses(plan);
    if (deviation.control && std::isfinite(deviation.formula))
      deviation.note = std::abs(deviation.measured) > deviation.error * z_allowed + deviation.rounding
                           ? "biased, as is derived for it"
                           : "bias too small to be seen";
    checks.push_back(judge(plan, "estimates", deviation));
  }
  for (size_t i = 0; i < sim::estimators.size(); ++i) {
    const auto estimator = sim::estimators[i];
    auto variance = claim_of(
        fmt::format("variance of {}", sim::name(estimator)), outcome.of[i].variance(),
        over_owners(plan, [&](const std::vector<double>& losses) {
          return sim::estimate_variance({.estimator = estimator, .values = values, .losses = losses, .known_loss = model.loss});
        }));
    variance.tolerance = variance_tolerance;
    variance.settles_after = settling_of_losses(plan);
    variance.rounding = rounding * rounding * plan.settings.ranks.peers;
    checks.push_back(judge(plan, "estimates", variance));
  }
}

double expected_effective(const LossPlan& plan, double empty) {
  const auto& ranks = plan.settings.ranks;
  if (!sim::is_equal_loss(ranks.model)) return unknown;
  const double world = ranks.peers, loss = sim::mean_loss(ranks.model, ranks.peers);
  if (loss >= 1) return unknown;
  const double some = noise_inflation(Estimator::stratified, ranks.peers, loss) / world;
  return 1 / (ranks.on_empty == OnEmpty::own ? (1 - empty) * some + empty : some);
}

void add_arrivals(const LossPlan& plan, const sim::EstimatesOutcome& outcome, std::vector<LossCheck>& checks) {
  const auto& ranks = plan.settings.ranks;
  const auto share = [&](double sim::BranchShares::*member) {
    return over_owners(plan, [&](const std::vector<double>& losses) { return sim::branch_shares(losses, 0).*member; });
  };
  const double empty = share(&sim::BranchShares::empty);
  auto lost = claim_of("share lost of contributions", outcome.loss,
                       has_law(ranks.model) ? sim::mean_loss(ranks.model, ranks.peers) : unknown);
  lost.settles_after = settling_of_losses(plan);
  checks.push_back(judge(plan, "estimates", lost));
  for (auto claim : {claim_of("ranges: full", outcome.full, share(&sim::BranchShares::full)),
                     claim_of("ranges: short", outcome.reduced, share(&sim::BranchShares::reduced)),
                     claim_of("ranges: empty", outcome.empty, empty)}) {
    // If no range of this kind was ever seen, the standard error is 0. For this reason, the allowed distance also depends on
    // the number of samples.
    claim.rounding = std::max(1e-12, 25 / outcome.full.samples());
    claim.settles_after = settling_of_losses(plan);
    checks.push_back(judge(plan, "estimates", claim));
  }
  checks.push_back(judge(plan, "estimates",
                         {.what = "N_eff",
                          .measured = outcome.effective,
                          .error = outcome.of[0].square.empty() ? unknown : outcome.effective * outcome.loss.standard_error(),
                          .formula = expected_effective(plan, empty),
                          .blocks = outcome.loss.blocks(),
                          .tolerance = variance_tolerance,
                          .settles_after = settling_of_losses(plan)}));
  LossCheck ratio{.group = "estimates",
                  .what = "most delivered / least",
                  .measured = outcome.delivered_ratio,
                  .interval = unknown,
                  .formula = unknown,
                  .allowed = unknown};
  if (outcome.delivered_ratio > 1.1) ratio.note = "warning: unequal links: means lean to well-connected senders";
  checks.push_back(ratio);
}

// --- drift -------------------------------------------------------------------------------------------------------------

// Returns the drift to expect if owners send differences. Drift is then a random walk, and the result is its mean over the
// measured steps.
sim::Drift walk_drift(const LossPlan& plan) {
  const auto& s = plan.settings;
  if (s.rho != 0 || !sim::is_equal_loss(s.ranks.model) || !sim::forgets_between_steps(s.ranks.model, s.ranks.ranges) ||
      s.ranks.missed == sim::Missed::zero)
    return {unknown, unknown};
  const double p = sim::mean_loss(s.ranks.model, s.ranks.peers), steps = static_cast<double>(s.burn_in + 1 + s.steps) / 2;
  const bool independent = s.ranks.model.kind != sim::LossModel::Kind::joint;
  return {p * steps, independent ? difference_drift(p, 1) * steps : unknown};
}

// Makes a claim (a measured value with its formula) in units of sigma_u^2 (`unit`).
Claim drift_claim(std::string what, const BlockMeans& measured, double unit, double formula) {
  auto claim = claim_of(std::move(what), measured, formula);
  claim.measured /= unit;
  claim.error = claim.error == 0 ? 0 : claim.error / unit;
  claim.rounding = 1e-9;
  return claim;
}

void add_drifts(const LossResult& result, std::vector<LossCheck>& checks) {
  const auto& plan = result.plan;
  const auto& outcome = *result.drift;
  const auto world = plan.settings.ranks.peers;
  const double unit = outcome.update_moment(), tolerance = plan.settings.rho > 0 ? correlated_drift_tolerance : drift_tolerance;
  const auto expected = expected_drift(result);
  const auto add = [&](Claim claim) {
    claim.control = !plan.is_as_specified();
    if (claim.control) claim.note = "negative control";
    claim.tolerance = tolerance;
    claim.settles_after = settling(plan);
    checks.push_back(judge(plan, "drift", claim));
  };
  add(drift_claim("O, owner against replica", outcome.owner, unit, expected.owner));
  if (world > 2) add(drift_claim("P, two replicas", outcome.pair, unit, expected.pair));
  const double pair = world > 2 ? expected.pair : 0;
  add(drift_claim("mean over all pairs of ranks", outcome.pair_mean, unit, pair_mean(world, expected.owner, pair)));
  add(drift_claim("consensus distance", outcome.consensus, unit, consensus_distance(world, expected.owner, pair)));
  if (world <= 2) return;
  const auto& model = plan.settings.ranks.model;
  const double p = sim::mean_loss(model, world), paper = paper_form(p), measured = outcome.pair.mean() / unit;
  checks.push_back({.group = "drift",
                    .what = "2p/(1+p), attributed",
                    .measured = measured,
                    .interval = unknown,
                    .formula = paper,
                    .allowed = unknown,
                    .note = paper > 0 && std::isfinite(measured)
                                ? fmt::format("unconfirmed; P is {:.2f} times it", measured / paper)
                                : "unconfirmed"});
  auto fresh = claim_of("P / (fresh - stale)^2", outcome.pair,
                        plan.is_as_specified() ? sim::pair_over_fresh(model, drift_case(plan, plan.settings.rho)) : unknown);
  const double moment = outcome.fresh.empty() ? unknown : outcome.fresh.mean();
  fresh.measured /= moment;
  fresh.error = std::hypot(fresh.error / moment, fresh.measured * outcome.fresh.standard_error() / moment);
  fresh.tolerance = fresh_tolerance;
  fresh.settles_after = settling(plan);
  fresh.note = "2p/(1+p) with that sigma^2";
  checks.push_back(judge(plan, "drift", fresh));
}

void add_growth(const LossResult& result, std::vector<LossCheck>& checks) {
  const auto& plan = result.plan;
  const auto& outcome = *result.drift;
  const double unit = outcome.update_moment();
  const auto add = [&](const char* what, const std::vector<sim::Growth>& runs) {
    const auto growth = sim::mean_of(runs);
    Claim claim{.what = what,
                .measured = growth.value / unit,
                .error = growth.standard_error / unit,
                .formula = has_law(plan.settings.ranks.model) ? 0 : unknown,
                .blocks = outcome.owner.blocks() / runs.size() / 2,
                .rounding = 1e-9,
                .settles_after = settling(plan)};
    claim.control = !plan.is_as_specified();
    if (claim.control) claim.note = "negative control";
    checks.push_back(judge(plan, "drift", claim));
  };
  add("growth of O over the second half", outcome.owner_growth);
  if (plan.settings.ranks.peers > 2) add("growth of P over the second half", outcome.pair_growth);
}

void add_copies(const LossResult& result, std::vector<LossCheck>& checks) {
  const auto& plan = result.plan;
  const auto& outcome = *result.drift;
  const auto& ranks = plan.settings.ranks;
  const bool ages = ranks.travel == sim::Travel::values;
  auto lost = claim_of("share lost of results", outcome.loss,
                       has_law(ranks.model) ? sim::mean_loss(ranks.model, ranks.peers) : unknown);
  lost.settles_after = settling_of_losses(plan);
  checks.push_back(judge(plan, "drift", lost));
  if (ages) {
    auto age = claim_of("mean age, steps", outcome.age, sim::mean_age(ranks.model, drift_case(plan, 0)));
    age.tolerance = drift_tolerance;
    age.settles_after = settling(plan);
    checks.push_back(judge(plan, "drift", age));
    checks.push_back({.group = "drift",
                      .what = "recovery by the ages, 1/steps",
                      .measured = recovery_from_ages(outcome.ages, ranks.stale_max),
                      .interval = unknown,
                      .formula = ranks.stale_max == 0 ? sim::mean_loss(ranks.model, ranks.peers) / age.formula : unknown,
                      .allowed = unknown});
  }
  if (ranks.stale_max > 0) {
    auto fetched = claim_of("fetched, per range and step", outcome.fetched, sim::fetches_of(ranks.model, drift_case(plan, 0)));
    fetched.tolerance = drift_tolerance;
    fetched.settles_after = settling(plan);
    checks.push_back(judge(plan, "drift", fetched));
  }
  const bool has_formula = ranks.estimator == Estimator::stratified || ranks.estimator == Estimator::count_all;
  const double loss = sim::mean_loss(ranks.model, ranks.peers);
  auto noise =
      claim_of("noise of the mean, of independent", outcome.noise,
               has_formula && sim::is_equal_loss(ranks.model) && loss < 1 ? noise_inflation(ranks.estimator, ranks.peers, loss)
                                                                          : unknown);
  noise.measured *= ranks.peers;
  noise.error *= ranks.peers;
  noise.tolerance = variance_tolerance;
  noise.settles_after = settling_of_losses(plan);
  checks.push_back(judge(plan, "drift", noise));
  checks.push_back(judge(plan, "drift",
                         {.what = "replicas alike after a full step",
                          .measured = outcome.healed ? 1. : 0.,
                          .error = 0,
                          .formula = 1,
                          .blocks = 2,
                          .control = !plan.is_as_specified(),
                          .note = plan.is_as_specified() ? "to the bit" : "negative control"}));
}

// --- fixed point -------------------------------------------------------------------------------------------------------

// Returns the fixed point: the weighted mean of the targets, at which the weighted mean gradient is zero. With OnEmpty::own, an
// empty range contributes the owner's own target.
double expected_fixed_point(const LossPlan& plan, Rank owner) {
  const auto& ranks = plan.settings.ranks;
  if (!has_law(ranks.model) || !sim::forgets_between_steps(ranks.model, ranks.ranges) || !plan.is_as_specified())
    return unknown;
  std::vector<double> targets, ones(ranks.peers, 1), losses;
  for (Rank rank = 0; rank < ranks.peers; ++rank) {
    targets.push_back(sim::target_of(rank));
    losses.push_back(ranks.model.link_loss(rank, owner));
  }
  const auto mean = [&](const std::vector<double>& values) {
    return sim::estimate_mean(
        {.estimator = ranks.estimator, .values = values, .losses = losses, .owner = owner, .known_loss = ranks.model.loss});
  };
  const double empty =
      ranks.on_empty == OnEmpty::own && ranks.estimator != Estimator::count_all ? sim::branch_shares(losses, owner).empty : 0;
  const bool divides = ranks.estimator == Estimator::zero_fill || ranks.estimator == Estimator::horvitz_thompson;
  const double own = empty * (divides ? 1. / ranks.peers : 1);
  return ((1 - empty) * mean(targets) + own * targets[owner]) / ((1 - empty) * mean(ones) + own);
}

// Returns how many steps it takes until the values are at their fixed point. In a step in which a contribution arrives, a value
// moves 1/20 of the way.
double fixed_point_settling(const LossPlan& plan, Rank owner) {
  std::vector<double> losses;
  for (Rank rank = 0; rank < plan.settings.ranks.peers; ++rank)
    losses.push_back(plan.settings.ranks.model.link_loss(rank, owner));
  return 200 / (1 - sim::branch_shares(losses, owner).empty);
}

void add_fixed_points(const LossResult& result, std::vector<LossCheck>& checks) {
  const auto& plan = result.plan;
  const auto peers = plan.settings.ranks.peers;
  double mean = 0;
  for (Rank rank = 0; rank < peers; ++rank) mean += sim::target_of(rank) / peers;
  for (const Rank owner : {Rank{0}, peers - 1}) {
    auto claim =
        claim_of(fmt::format("values of rank {}", owner), result.fixed_point->values[owner], expected_fixed_point(plan, owner));
    claim.rounding = rounding * sim::target_of(peers - 1);
    claim.settles_after = settling(plan) + fixed_point_settling(plan, owner);
    claim.control = is_biased(plan.settings.ranks.estimator, plan.settings.ranks.model) || !plan.is_as_specified();
    claim.note = fmt::format("{}mean of the targets: {:.6g}", claim.control ? "negative control; " : "", mean);
    checks.push_back(judge(plan, "fixed point", claim));
  }
}

}  // namespace

std::string_view name(CheckVerdict verdict) {
  constexpr std::string_view names[] = {"ok", "OFF", "unsure", "control", "-"};
  return names[static_cast<size_t>(verdict)];
}

sim::Drift expected_drift(const LossResult& result) {
  const auto& plan = result.plan;
  if (plan.settings.ranks.travel == sim::Travel::differences) return walk_drift(plan);
  if (plan.settings.ranks.missed == sim::Missed::zero) return {unknown, unknown};
  const double unit = result.drift->update_moment();
  const auto correlated = sim::drift_of(plan.settings.ranks.model, drift_case(plan, plan.settings.rho)),
             independent = sim::drift_of(plan.settings.ranks.model, drift_case(plan, 0));
  return {result.drift->compose(correlated.owner, independent.owner) / unit,
          result.drift->compose(correlated.pair, independent.pair) / unit};
}

std::vector<double> expected_deviations(const LossPlan& plan) {
  const auto values = sim::fixed_gradients(plan.settings.ranks.peers);
  double truth = 0;
  for (const double value : values) truth += value / static_cast<double>(values.size());
  std::vector<double> deviations;
  for (const auto estimator : sim::estimators) {
    deviations.push_back(over_owners(plan,
                                     [&](const std::vector<double>& losses) {
                                       return sim::estimate_mean({.estimator = estimator,
                                                                  .values = values,
                                                                  .losses = losses,
                                                                  .known_loss = plan.settings.ranks.model.loss});
                                     }) -
                         truth);
  }
  return deviations;
}

std::vector<LossCheck> checks_of(const LossResult& result) {
  std::vector<LossCheck> checks;
  if (result.estimates) {
    add_estimators(result.plan, *result.estimates, checks);
    add_arrivals(result.plan, *result.estimates, checks);
  }
  if (result.drift) {
    add_drifts(result, checks);
    add_growth(result, checks);
    add_copies(result, checks);
  }
  if (result.fixed_point) add_fixed_points(result, checks);
  return checks;
}

}  // namespace unisono::lab

#include "lab/loss/loss_run.h"

#include <algorithm>
#include <string>

#include "base/concat.h"
#include "lab/loss/loss_steps.h"

namespace unisono::sim {
namespace {

// Two arrays may have at most this many values (512 MiB): one with the contributions of all ranks, and one with the copies of
// all ranks.
constexpr uint64_t values_max = uint64_t{1} << 27;

double mean_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

const char* name(Estimator estimator) {
  switch (estimator) {
    case Estimator::stratified: return "stratified";
    case Estimator::count: return "count";
    case Estimator::count_all: return "count_all";
    case Estimator::horvitz_thompson: return "horvitz_thompson";
    case Estimator::zero_fill: break;
  }
  return "zero_fill";
}

void choose_sizes(LossRanksOptions& options) {
  constexpr uint32_t samples = 512, full_range = 128, least_range = 16, ranges_max = 16;
  options.ranges = 1;
  options.elements = least_range;
  if (options.peers >= 32) return;
  // Prefers many short ranges, because each range is an independent sample, while all elements of a range are lost together.
  const uint32_t links = options.peers * (options.peers - 1);
  options.ranges = std::clamp(samples / links, 1u, ranges_max);
  options.elements = options.ranges > 1 ? full_range : least_range;
}

Status check(const LossSettings& settings) {
  const auto& r = settings.ranks;
  if (r.peers < 2) return {Code::invalid, "peers must be at least 2"};
  if (settings.steps == 0 || settings.burn_in >= settings.steps)
    return {Code::invalid,
            concat(settings.steps, " steps, of which the first ", settings.burn_in, " are not measured: none is left")};
  if (!(settings.rho >= 0 && settings.rho < 1)) return {Code::invalid, "rho: an autocorrelation from 0 to less than 1"};
  if (uint64_t{r.peers} * r.peers * r.ranges > values_max / std::max(1u, r.elements))
    return {Code::invalid,
            concat(r.peers, " ranks with ", r.ranges, " ranges of ", r.elements, " elements: more than a simulation can hold")};
  if (r.on_empty == OnEmpty::fail || r.on_empty == OnEmpty::automatic)
    return {Code::invalid, "an empty range is held, or has the owner's own value, or zero"};
  if (r.stale_max > 0 && r.travel == Travel::differences)
    return {Code::invalid, "stale_max means nothing where differences travel: nobody knows how old a copy is"};
  return {};
}

double fixed_gradient(uint32_t distance, uint32_t world) { return 1 + 4. * distance / world; }

std::vector<double> fixed_gradients(uint32_t world) {
  std::vector<double> values;
  for (uint32_t distance = 0; distance < world; ++distance) values.push_back(fixed_gradient(distance, world));
  return values;
}

// --- estimates ---------------------------------------------------------------------------------------------------------

BlockMeans EstimateMeasures::variance() const {
  BlockMeans variances;
  const double mean = deviation.empty() ? 0 : deviation.mean();
  for (size_t i = 0; i < square.blocks(); ++i)
    variances.add((square.block(i) - 2 * mean * deviation.block(i) + mean * mean) * square.samples_of(i), square.samples_of(i));
  return variances;
}

namespace {

void measure_estimates(const LossRanks& ranks, double truth, EstimateMeasures& measures) {
  const auto& options = ranks.options();
  double sum = 0, squares = 0, samples = 0;
  for (Rank owner = 0; owner < options.peers; ++owner) {
    for (uint32_t range = 0; range < options.ranges; ++range) {
      if (ranks.kind(owner, range) == RangeKind::empty) continue;
      const double deviation =
          mean_of(ranks.reduced(owner).subspan(size_t{range} * options.elements, options.elements)) - truth;
      sum += deviation;
      squares += deviation * deviation;
      ++samples;
    }
  }
  measures.deviation.add(sum, samples);
  measures.square.add(squares, samples);
}

void set_fixed_gradients(LossRanks& ranks) {
  const auto world = ranks.options().peers;
  for (Rank owner = 0; owner < world; ++owner) {
    for (uint32_t distance = 0; distance < world; ++distance) {
      const auto to = ranks.contribution(owner, (owner + distance) % world);
      std::fill(to.begin(), to.end(), static_cast<float>(fixed_gradient(distance, world)));
    }
  }
}

double delivered_ratio(const std::vector<uint64_t>& delivered) {
  const auto [least, most] = std::minmax_element(delivered.begin(), delivered.end());
  return *least == 0 ? (*most == 0 ? 1 : std::numeric_limits<double>::infinity())
                     : static_cast<double>(*most) / static_cast<double>(*least);
}

}  // namespace

Result<EstimatesOutcome> run_estimates(const LossSettings& settings, const LossWatch& watch) {
  auto ranks = make_ranks(settings, 1, 0);
  if (!ranks.ok()) return ranks.status();
  set_fixed_gradients(*ranks);
  const auto& options = settings.ranks;
  double truth = 0;
  for (const double value : fixed_gradients(options.peers)) truth += value / options.peers;
  const BlockMeans empty(block_steps(settings));
  EstimatesOutcome outcome;
  outcome.full = outcome.reduced = outcome.empty = outcome.loss = empty;
  outcome.of.fill({empty, empty});
  std::vector<uint64_t> delivered(options.peers);
  ProgressUpdates updates(settings, watch);
  const double all = static_cast<double>(options.peers) * options.ranges;
  for (uint64_t step = 0; step < settings.steps; ++step, updates.step()) {
    // Before burn_in, a step changes only the state of the links, and the value of N_eff.
    const auto half = ranks->contribute(step);
    if (step < settings.burn_in) continue;
    for (Rank sender = 0; sender < options.peers; ++sender) delivered[sender] += ranks->delivered(sender);
    outcome.full.add(static_cast<double>(half.full), all);
    outcome.reduced.add(static_cast<double>(half.reduced), all);
    outcome.empty.add(static_cast<double>(half.empty), all);
    outcome.loss.add(static_cast<double>(half.lost), static_cast<double>(half.sent));
    for (size_t i = 0; i < estimators.size(); ++i) {
      ranks->reduce(estimators[i]);
      measure_estimates(*ranks, truth, outcome.of[i]);
    }
  }
  outcome.effective = ranks->effective_contributors();
  outcome.delivered_ratio = delivered_ratio(delivered);
  return outcome;
}

void EstimatesOutcome::append(const EstimatesOutcome& other, size_t runs) {
  for (size_t i = 0; i < of.size(); ++i) {
    of[i].deviation.append(other.of[i].deviation);
    of[i].square.append(other.of[i].square);
  }
  full.append(other.full);
  reduced.append(other.reduced);
  empty.append(other.empty);
  loss.append(other.loss);
  effective += (other.effective - effective) / static_cast<double>(runs);
  delivered_ratio = std::max(delivered_ratio, other.delivered_ratio);
}

// --- fixed point -------------------------------------------------------------------------------------------------------

Result<FixedPointOutcome> run_fixed_point(const LossSettings& settings, const LossWatch& watch) {
  constexpr float rate = .05f;
  const auto peers = settings.ranks.peers;
  double start = 0;
  for (Rank rank = 0; rank < peers; ++rank) start += target_of(rank) / peers;
  auto ranks = make_ranks(settings, rate, static_cast<float>(start));
  if (!ranks.ok()) return ranks.status();
  FixedPointOutcome outcome;
  outcome.values.assign(peers, BlockMeans(block_steps(settings)));
  ProgressUpdates updates(settings, watch);
  for (uint64_t step = 0; step < settings.steps; ++step, updates.step()) {
    for (Rank owner = 0; owner < peers; ++owner) {
      for (Rank sender = 0; sender < peers; ++sender) {
        const auto copy = ranks->copy(sender, owner);
        const auto to = ranks->contribution(owner, sender);
        const auto target = static_cast<float>(target_of(sender));
        for (size_t i = 0; i < to.size(); ++i) to[i] = copy[i] - target;
      }
    }
    ranks->contribute(step);
    ranks->reduce(settings.ranks.estimator);
    ranks->update_and_broadcast(step, false);
    if (step < settings.burn_in) continue;
    for (Rank owner = 0; owner < peers; ++owner) outcome.values[owner].add(mean_of(ranks->copy(owner, owner)), 1);
  }
  return outcome;
}

void FixedPointOutcome::append(const FixedPointOutcome& other) {
  for (size_t i = 0; i < values.size(); ++i) values[i].append(other.values[i]);
}

}  // namespace unisono::sim

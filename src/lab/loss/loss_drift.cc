// Measures how far replicas drift from their owners and from each other.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "lab/loss/loss_run.h"
#include "lab/loss/loss_steps.h"

namespace unisono::sim {
namespace {

constexpr uint64_t gradient_seed = 0x6772616469656e74;
constexpr size_t ages_kept = 256;

// Draws numbers with mean 0 and variance 1. They are uniform, because the results depend only on the first two moments.
void fill_noise(std::span<float> values, Random& random) {
  constexpr float scale = 3.4641016f * 0x1.0p-32f;  // turns a 32-bit integer into a number with variance 1; 3.464… is sqrt(12)
  for (size_t i = 0; i < values.size(); i += 2) {
    const uint64_t bits = random.next();
    values[i] = static_cast<float>(static_cast<int32_t>(bits)) * scale;
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(static_cast<int32_t>(bits >> 32)) * scale;
  }
}

// Sums over all ranges, in one step.
struct StepSums {
  double squares = 0, squared_sums = 0, fresh = 0, fresh_samples = 0, age = 0;
};

// Measures, for one range, how much each replica (another rank's copy) differs from the owner's values.
class RangeDrift {
 public:
  explicit RangeDrift(const LossRanksOptions& options)
      : options_(options), first_(options.elements), second_(options.elements) {}

  void add(LossRanks& ranks, Rank owner, uint32_t range, StepSums& sums) {
    const size_t begin = size_t{range} * options_.elements;
    const float* const truth = ranks.copy(owner, owner).data() + begin;
    std::fill(first_.begin(), first_.end(), 0.f);
    std::fill(second_.begin(), second_.end(), 0.f);
    double missed_squares = 0, missed = 0, arrived = 0;
    for (Rank receiver = 0; receiver < options_.peers; ++receiver) {
      if (receiver == owner) continue;
      const float* const copy = ranks.copy(receiver, owner).data() + begin;
      for (size_t i = 0; i < first_.size(); ++i) {
        const float difference = copy[i] - truth[i];
        first_[i] += difference;
        second_[i] += difference * difference;
      }
      if (ranks.arrived(owner, receiver, range)) {
        ++arrived;
        continue;
      }
      ++missed;
      for (size_t i = 0; i < first_.size(); ++i)
        missed_squares += static_cast<double>(copy[i] - truth[i]) * (copy[i] - truth[i]);
    }
    for (size_t i = 0; i < first_.size(); ++i) {
      sums.squares += second_[i];
      sums.squared_sums += static_cast<double>(first_[i]) * first_[i];
    }
    sums.fresh += arrived * missed_squares;
    sums.fresh_samples += arrived * missed * options_.elements;
  }

 private:
  const LossRanksOptions& options_;
  std::vector<float> first_, second_;
};

class DriftRun {
 public:
  DriftRun(const LossSettings& settings, const LossWatch& watch, LossRanks& ranks)
      : settings_(settings),
        options_(settings.ranks),
        ranks_(ranks),
        random_(mix64(settings.ranks.seed ^ gradient_seed)),
        range_drift_(settings.ranks) {
    const BlockMeans empty(block_steps(settings));
    outcome_ = {.owner = empty,
                .pair = empty,
                .pair_mean = empty,
                .consensus = empty,
                .fresh = empty,
                .age = empty,
                .fetched = empty,
                .loss = empty,
                .noise = empty,
                .update_square = empty,
                .update_product = empty,
                .ages = std::vector<uint64_t>(ages_kept),
                .rho = settings.rho};
    common_.resize(size_t{options_.peers} * ranks.shard_elements());
    fresh_.resize(common_.size());
    before_.resize(common_.size());
    fill_noise(common_, random_);
    curve_steps_ = std::max<uint64_t>(1, (settings.steps + watch.curve_points - 1) / std::max<uint64_t>(1, watch.curve_points));
  }

  void step(uint64_t step) {
    set_gradients(step);
    ranks_.contribute(step);
    ranks_.reduce(options_.estimator);
    const auto half = ranks_.update_and_broadcast(step, false);
    const auto sums = measure();
    add_to_curve(step, sums);
    if (step >= settings_.burn_in) add(half, sums);
    std::copy(ranks_.changes().begin(), ranks_.changes().end(), before_.begin());
  }

  DriftOutcome finish(uint64_t step) {
    set_gradients(step);
    ranks_.contribute(step);
    ranks_.reduce(options_.estimator);
    ranks_.update_and_broadcast(step, true);
    outcome_.healed = ranks_.identical();
    outcome_.owner_growth = {growth_of(outcome_.owner)};
    outcome_.pair_growth = {growth_of(outcome_.pair)};
    return std::move(outcome_);
  }

 private:
  void set_gradients(uint64_t step) {
    const auto rho = static_cast<float>(settings_.rho),
               fresh = static_cast<float>(std::sqrt(1 - settings_.rho * settings_.rho));
    if (step > 0) {
      fill_noise(fresh_, random_);
      for (size_t i = 0; i < common_.size(); ++i) common_[i] = rho * common_[i] + fresh * fresh_[i];
    }
    const size_t shard = ranks_.shard_elements();
    for (Rank owner = 0; owner < options_.peers; ++owner) {
      for (Rank sender = 0; sender < options_.peers; ++sender) {
        const auto to = ranks_.contribution(owner, sender);
        fill_noise(to, random_);
        for (size_t i = 0; i < shard; ++i) to[i] += common_[owner * shard + i];
      }
    }
  }

  StepSums measure() {
    StepSums sums;
    for (Rank owner = 0; owner < options_.peers; ++owner) {
      for (uint32_t range = 0; range < options_.ranges; ++range) range_drift_.add(ranks_, owner, range, sums);
    }
    return sums;
  }

  double ranges() const { return static_cast<double>(options_.peers) * options_.ranges; }
  double owner_drift(const StepSums& sums) const {
    return sums.squares / (ranges() * options_.elements * (options_.peers - 1));
  }
  double pairs() const { return (options_.peers - 1.) * (options_.peers - 2.) / 2; }
  // Uses that the squared differences of all pairs of n values add up to n * (sum of squares) - (sum)^2.
  double pair_squares(const StepSums& sums) const { return (options_.peers - 1) * sums.squares - sums.squared_sums; }

  void add_to_curve(uint64_t step, const StepSums& sums) {
    curve_.owner += owner_drift(sums);
    curve_.pair += pairs() > 0 ? pair_squares(sums) / (pairs() * ranges() * options_.elements) : 0;
    if (++curve_.step < curve_steps_ && step + 1 < settings_.steps) return;
    const auto count = static_cast<double>(curve_.step);
    outcome_.curve.push_back({step + 1, curve_.owner / count, curve_.pair / count});
    curve_ = {};
  }

  void add(const HalfStep& half, const StepSums& sums) {
    const double peers = options_.peers, elements = ranges() * options_.elements, copies = ranges() * (peers - 1);
    outcome_.owner.add(sums.squares, elements * (peers - 1));
    outcome_.pair.add(pair_squares(sums), elements * pairs());
    outcome_.pair_mean.add(peers * sums.squares - sums.squared_sums, elements * peers * (peers - 1) / 2);
    outcome_.consensus.add(sums.squares / peers - sums.squared_sums / (peers * peers), elements);
    outcome_.fresh.add(sums.fresh, sums.fresh_samples);
    outcome_.fetched.add(static_cast<double>(half.fetched), copies);
    outcome_.loss.add(static_cast<double>(half.lost), static_cast<double>(half.sent));
    add_ages(copies);
    add_noise();
    double square = 0, product = 0;
    const auto changes = ranks_.changes();
    for (size_t i = 0; i < changes.size(); ++i) {
      square += static_cast<double>(changes[i]) * changes[i];
      product += static_cast<double>(changes[i]) * before_[i];
    }
    outcome_.update_square.add(square, elements);
    outcome_.update_product.add(product, elements);
  }

  void add_ages(double copies) {
    if (options_.travel == Travel::differences) return;
    uint64_t sum = 0;
    for (Rank receiver = 0; receiver < options_.peers; ++receiver) {
      const auto& state = ranks_.state(receiver);
      for (Rank owner = 0; owner < options_.peers; ++owner) {
        if (owner == receiver) continue;
        for (const uint32_t version : state.versions(owner)) {
          const uint32_t age = state.step() - version;
          sum += age;
          ++outcome_.ages[std::min<size_t>(age, ages_kept - 1)];
        }
      }
    }
    outcome_.age.add(static_cast<double>(sum), copies);
  }

  void add_noise() {
    double squares = 0, samples = 0;
    const size_t shard = ranks_.shard_elements();
    for (Rank owner = 0; owner < options_.peers; ++owner) {
      const auto reduced = ranks_.reduced(owner);
      for (uint32_t range = 0; range < options_.ranges; ++range) {
        if (ranks_.kind(owner, range) == RangeKind::empty) continue;
        for (size_t i = size_t{range} * options_.elements; i < (range + size_t{1}) * options_.elements; ++i) {
          const double error = reduced[i] - common_[owner * shard + i];
          squares += error * error;
        }
        samples += options_.elements;
      }
    }
    outcome_.noise.add(squares, samples);
  }

  const LossSettings& settings_;
  const LossRanksOptions& options_;
  LossRanks& ranks_;
  Random random_;
  RangeDrift range_drift_;
  std::vector<float> common_, fresh_, before_;
  DriftPoint curve_;
  uint64_t curve_steps_ = 1;
  DriftOutcome outcome_;
};

}  // namespace

Result<DriftOutcome> run_drift(const LossSettings& settings, const LossWatch& watch) {
  auto ranks = make_ranks(settings, 1, 0);
  if (!ranks.ok()) return ranks.status();
  DriftRun run(settings, watch, *ranks);
  ProgressUpdates updates(settings, watch);
  for (uint64_t step = 0; step < settings.steps; ++step, updates.step()) run.step(step);
  return run.finish(settings.steps);
}

double DriftOutcome::compose(double correlated, double independent) const {
  const double part = correlated_moment();
  return (part == 0 ? 0 : part * correlated) + (update_moment() - part) * independent;
}

Growth growth_of(const BlockMeans& values) {
  const size_t first = values.blocks() / 2, count = values.blocks() - first;
  constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  if (count < 3) return {unknown, unknown};
  const double middle = static_cast<double>(count - 1) / 2;
  double mean = 0, slope = 0, spread = 0, squares = 0;
  for (size_t i = 0; i < count; ++i) mean += values.block(first + i) / static_cast<double>(count);
  for (size_t i = 0; i < count; ++i) {
    const double x = static_cast<double>(i) - middle;
    slope += x * (values.block(first + i) - mean);
    spread += x * x;
  }
  slope /= spread;
  for (size_t i = 0; i < count; ++i)
    squares += std::pow(values.block(first + i) - mean - slope * (static_cast<double>(i) - middle), 2);
  const double length = static_cast<double>(count);
  return {slope * length, std::sqrt(squares / (length - 2) / spread) * length};
}

Growth mean_of(const std::vector<Growth>& runs) {
  Growth mean;
  const auto count = static_cast<double>(runs.size());
  for (const auto& run : runs) {
    mean.value += run.value / count;
    mean.standard_error += run.standard_error * run.standard_error / (count * count);
  }
  mean.standard_error = std::sqrt(mean.standard_error);
  return mean;
}

void DriftOutcome::append(const DriftOutcome& other) {
  for (const auto member : {&DriftOutcome::owner, &DriftOutcome::pair, &DriftOutcome::pair_mean, &DriftOutcome::consensus,
                            &DriftOutcome::fresh, &DriftOutcome::age, &DriftOutcome::fetched, &DriftOutcome::loss,
                            &DriftOutcome::noise, &DriftOutcome::update_square, &DriftOutcome::update_product}) {
    (this->*member).append(other.*member);
  }
  for (size_t i = 0; i < ages.size(); ++i) ages[i] += other.ages[i];
  owner_growth.insert(owner_growth.end(), other.owner_growth.begin(), other.owner_growth.end());
  pair_growth.insert(pair_growth.end(), other.pair_growth.begin(), other.pair_growth.end());
  healed = healed && other.healed;
  const auto runs = static_cast<double>(owner_growth.size());
  for (size_t i = 0; i < curve.size(); ++i) {
    curve[i].owner += (other.curve[i].owner - curve[i].owner) / runs;
    curve[i].pair += (other.curve[i].pair - curve[i].pair) / runs;
  }
}

}  // namespace unisono::sim

#include "lab/loss/loss_run.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "base/random.h"

namespace unisono::sim {
namespace {

constexpr uint64_t blocks_max = 50, block_steps_min = 100;
constexpr uint64_t work_between_news = 4'000'000;  // elements
constexpr uint64_t gradient_seed = 0x6772616469656e74;
constexpr size_t ages_kept = 256;
constexpr uint64_t values_max = uint64_t{1} << 27;  // contributions and copies of all ranks: 512 MiB each

double mean_of(std::span<const float> values) {
  double sum = 0;
  for (const float value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// Uniform, mean 0, variance 1: only moments count.
void fill_noise(std::span<float> values, Random& random) {
  constexpr float scale = 3.4641016f * 0x1.0p-32f;  // sqrt(12)
  for (size_t i = 0; i < values.size(); i += 2) {
    const uint64_t bits = random.next();
    values[i] = static_cast<float>(static_cast<int32_t>(bits)) * scale;
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(static_cast<int32_t>(bits >> 32)) * scale;
  }
}

uint64_t block_steps(const LossSettings& settings) {
  const uint64_t measured = settings.steps - settings.burn_in;
  return std::max<uint64_t>(1, measured / std::clamp<uint64_t>(measured / block_steps_min, 4, blocks_max));
}

// Says now and then how far it is.
class News {
 public:
  News(const LossSettings& settings, const LossWatch& watch) : watch_(watch) {
    const auto& r = settings.ranks;
    every_ = std::clamp<uint64_t>(work_between_news / (uint64_t{r.peers} * r.peers * r.ranges * r.elements), 1, 1000);
  }
  ~News() { tell(); }
  News(const News&) = delete;
  void step() {
    if (++steps_ >= every_) tell();
  }

 private:
  void tell() {
    if (watch_.progress && steps_ > 0) watch_.progress(steps_);
    steps_ = 0;
  }
  const LossWatch& watch_;
  uint64_t every_ = 1, steps_ = 0;
};

Result<LossRanks> make_ranks(const LossSettings& settings, float rate, float value) {
  if (auto status = check(settings); !status.ok()) return status;
  auto options = settings.ranks;
  options.rate = rate;
  return LossRanks::make(options, std::vector<float>(size_t{options.ranges} * options.elements, value));
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
  // Ranges are lost independently, their elements are not: many of them, and of few elements.
  const uint32_t links = options.peers * (options.peers - 1);
  options.ranges = std::clamp(samples / links, 1u, ranges_max);
  options.elements = options.ranges > 1 ? full_range : least_range;
}

Status check(const LossSettings& settings) {
  const auto& r = settings.ranks;
  if (r.peers < 2) return {Code::invalid, "one rank loses nothing: at least 2"};
  if (settings.steps == 0 || settings.burn_in >= settings.steps)
    return {Code::invalid, std::to_string(settings.steps) + " steps, of which the first " + std::to_string(settings.burn_in) +
                               " are not measured: none is left"};
  if (!(settings.rho >= 0 && settings.rho < 1)) return {Code::invalid, "rho: an autocorrelation from 0 to less than 1"};
  if (uint64_t{r.peers} * r.peers * r.ranges > values_max / std::max(1u, r.elements))
    return {Code::invalid, std::to_string(r.peers) + " ranks with " + std::to_string(r.ranges) + " ranges of " +
                               std::to_string(r.elements) + " elements: more than a simulation can hold"};
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
  News news(settings, watch);
  const double all = static_cast<double>(options.peers) * options.ranges;
  for (uint64_t step = 0; step < settings.steps; ++step, news.step()) {
    // Only the links remember anything; they run on from the first step.
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

// --- drift -------------------------------------------------------------------------------------------------------------

namespace {

// Sums of one step.
struct StepSums {
  double squares = 0, squared_sums = 0, fresh = 0, fresh_samples = 0, age = 0;
};

// Of one range: how far each replica is from its owner.
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
  // The sum over pairs of squared differences is count * (sum of squares) - (sum)^2.
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
  News news(settings, watch);
  for (uint64_t step = 0; step < settings.steps; ++step, news.step()) run.step(step);
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
  News news(settings, watch);
  for (uint64_t step = 0; step < settings.steps; ++step, news.step()) {
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

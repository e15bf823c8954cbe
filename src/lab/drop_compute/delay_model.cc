#include "lab/drop_compute/delay_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numbers>
#include <span>

#include "base/concat.h"

namespace unisono::sim {
namespace {

using Law = DelayModel::Law;

constexpr double seconds_max = 1e6;  // no time in the model is longer, so sums of times in ns stay far below 2^63
// In the law `paper`, the delay is mu * min(paper_scale * e^Z, cap). Without the cap, the mean delay would be 0.5 mu.
constexpr double paper_scale = 0.3032653298563167;  // e^4 / (2 e^4.5)
constexpr size_t reference_values = 999;

// Draws a number by the Box-Muller method. The method makes two numbers; the second one is discarded, so that a draw does not
// depend on earlier draws.
double standard_normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - random.unit()));
  return radius * std::cos(2 * std::numbers::pi * random.unit());
}

// Draws a number from the gamma law with scale 1. Source: Marsaglia and Tsang 2000, "A simple method for generating gamma
// variables".
double standard_gamma(Random& random, double shape) {
  if (shape < 1) {
    const double larger = standard_gamma(random, shape + 1);
    return larger * std::pow(1 - random.unit(), 1 / shape);
  }
  const double d = shape - 1. / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = standard_normal(random), root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(1 - random.unit()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

double normal_density(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi); }
double normal_below(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// The distribution of X in the law `reference`. X is an integer from 1 to 999, and P(X = x) is proportional to exp(-(ln x -
// 4)^2 / 2) / x.
struct ReferenceLaw {
  std::array<double, reference_values> up_to{};  // cumulative probabilities; the last one is 1
  double mean = 0, square = 0;                   // E[X], E[X^2]
};

const ReferenceLaw& reference_law() {
  static const ReferenceLaw law = [] {
    ReferenceLaw made;
    double sum = 0;
    for (size_t i = 0; i < reference_values; ++i) {
      const double x = static_cast<double>(i + 1), away = std::log(x) - 4, weight = std::exp(-away * away / 2) / x;
      made.up_to[i] = sum += weight;
      made.mean += weight * x;
      made.square += weight * x * x;
    }
    for (auto& each : made.up_to) each /= sum;
    made.mean /= sum;
    made.square /= sum;
    return made;
  }();
  return law;
}

double reference_draw(Random& random) {
  const auto& law = reference_law();
  const auto found = std::upper_bound(law.up_to.begin(), law.up_to.end() - 1, random.unit());
  return static_cast<double>(found - law.up_to.begin() + 1);
}

// --- parsing and printing --------------------------------------------------------------------------------------------

struct Key {
  const char* name;
  double DelayModel::*value;
};
struct LawText {
  Law law;
  const char* name;
  std::span<const Key> keys;
};
constexpr Key constant_keys[] = {{"base", &DelayModel::base}};
constexpr Key paper_keys[] = {{"mu", &DelayModel::base}, {"cap", &DelayModel::cap}};
constexpr Key reference_keys[] = {{"compute", &DelayModel::base}, {"factor", &DelayModel::factor}};
constexpr Key normal_keys[] = {{"mean", &DelayModel::base}, {"sd", &DelayModel::deviation}};
constexpr Key noise_keys[] = {{"base", &DelayModel::base}, {"mean", &DelayModel::mean}, {"sd", &DelayModel::deviation}};
constexpr LawText laws[] = {
    {Law::constant, "constant", constant_keys},
    {Law::paper, "L", paper_keys},
    {Law::reference, "R", reference_keys},
    {Law::normal, "G", normal_keys},
    {Law::exponential, "exp", std::span(noise_keys).first(2)},
    {Law::gamma, "gamma", noise_keys},
    {Law::bernoulli, "bernoulli", noise_keys},
    {Law::lognormal, "lognormal", noise_keys},
    {Law::normal_cut, "normal0", noise_keys},
};
static_assert([] {
  for (size_t i = 0; i < std::size(laws); ++i) {
    if (static_cast<size_t>(laws[i].law) != i) return false;
  }
  return true;
}());

Status wrong(const std::string& what) { return {Code::invalid, "bad_delay_model: " + what}; }

template <typename Number>
bool read(Number& number, std::string_view text) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

Status read_slow(DelayModel& model, std::string_view value) {
  const auto cross = value.find('x');
  uint32_t worker = 0;
  if (cross == value.npos || !read(worker, value.substr(0, cross)) || !read(model.slow_factor, value.substr(cross + 1)) ||
      !(model.slow_factor > 0 && model.slow_factor <= seconds_max))
    return wrong("slow=" + std::string(value) +
                 ": it looks like 3x2, a worker and how many times as long it takes, more than 0");
  model.slow_worker = worker;
  return {};
}

Status read_part(DelayModel& model, const LawText& law, std::string_view part) {
  const auto equals = part.find('=');
  const auto key = part.substr(0, equals);
  const auto value = equals == part.npos ? std::string_view() : part.substr(equals + 1);
  if (key == "slow") return read_slow(model, value);
  std::string known;
  for (const auto& each : law.keys) {
    known += each.name + std::string(", ");
    if (key != each.name) continue;
    double& number = model.*each.value;
    const double least = law.law == Law::normal_cut && each.value == &DelayModel::mean ? -seconds_max : 0;
    if (!read(number, value) || !(number >= least && number <= seconds_max))
      return wrong(std::string(part) + ": not a number from " + (least < 0 ? "-1e6" : "0") + " to 1e6");
    return {};
  }
  return wrong("\"" + std::string(part) + "\" is none of " + known + "slow");
}

Status check(const DelayModel& model) {
  const bool needs_mean = model.law == Law::gamma || model.law == Law::bernoulli || model.law == Law::lognormal;
  if (needs_mean && model.deviation > 0 && !(model.mean > 0)) return wrong("mean=0 with sd > 0");
  if (!(model.latency_mean() > 0)) return wrong("the mean latency must be above 0");
  return {};
}

// Formats a number with as few digits as possible, such that parsing gives the same number again.
std::string shortest(double number) {
  char text[32];
  return {text, std::to_chars(std::begin(text), std::end(text), number).ptr};
}

}  // namespace

Result<DelayModel> DelayModel::parse(std::string_view text) {
  const auto colon = std::min(text.find(':'), text.size());
  const auto* law =
      std::find_if(std::begin(laws), std::end(laws), [&](const LawText& each) { return text.substr(0, colon) == each.name; });
  if (law == std::end(laws))
    return wrong("law \"" + std::string(text.substr(0, colon)) +
                 "\" is none of constant, L, R, G, exp, gamma, bernoulli, lognormal, normal0");
  DelayModel model{.law = law->law};
  std::string seen = ",";
  for (size_t begin = colon + 1; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    if (auto status = read_part(model, *law, part); !status.ok()) return status;
    const auto key = "," + std::string(part.substr(0, part.find('='))) + ",";
    if (seen.find(key) != seen.npos) return wrong(std::string(part) + ": given twice");
    seen += key.substr(1);
    begin = end + 1;
  }
  if (auto status = check(model); !status.ok()) return status;
  return model;
}

std::string DelayModel::to_string() const {
  const auto& text = laws[static_cast<size_t>(law)];
  std::string all = text.name;
  for (const auto& key : text.keys) {
    // The cap is almost always the usual one, and then it is not written.
    if (key.value == &DelayModel::cap && cap == DelayModel().cap) continue;
    all += (all.find(':') == all.npos ? ":" : ",") + std::string(key.name) + "=" + shortest(this->*key.value);
  }
  if (slow_worker >= 0) all += concat(",slow=", slow_worker, "x", shortest(slow_factor));
  return all;
}

double DelayModel::delay(Random& random) const {
  switch (law) {
    case Law::constant: return 0;
    case Law::paper: return base * std::min(paper_scale * std::exp(standard_normal(random)), cap);
    case Law::reference: return base * .5 * factor * reference_draw(random) / reference_law().mean;
    case Law::normal:
      for (;;) {
        if (const double drawn = base + deviation * standard_normal(random); !(drawn < 0)) return drawn - base;
      }
    case Law::exponential: return -mean * std::log(1 - random.unit());
    case Law::gamma: {
      if (deviation <= 0) return mean;
      const double scale = deviation * deviation / mean;
      return scale * standard_gamma(random, mean / scale);
    }
    case Law::bernoulli: {
      if (mean <= 0) return 0;
      const double chance = mean * mean / (mean * mean + deviation * deviation);
      return random.chance(chance) ? mean / chance : 0;
    }
    case Law::lognormal: {
      if (mean <= 0) return 0;
      const double square = std::log1p(deviation * deviation / (mean * mean));
      return mean * std::exp(std::sqrt(square) * standard_normal(random) - square / 2);
    }
    case Law::normal_cut: return std::max(0., mean + deviation * standard_normal(random));
  }
  return 0;
}

double DelayModel::latency(Random& random, uint32_t worker) const {
  const double usual = base + delay(random);
  return worker == slow_worker ? usual * slow_factor : usual;
}

namespace {

struct Moments {
  double mean = 0, variance = 0;
};

// Returns the mean and the variance of min(c e^Z, cap), where c is paper_scale. The part below the cap follows from E[(e^Z)^n;
// Z < z] = e^(n^2/2) P(Z < z - n).
Moments paper_moments(double cap) {
  const double z = std::log(cap / paper_scale), capped = normal_below(-z);
  const double mean = paper_scale * std::exp(.5) * normal_below(z - 1) + cap * capped;
  const double square = paper_scale * paper_scale * std::exp(2.) * normal_below(z - 2) + cap * cap * capped;
  return {mean, square - mean * mean};
}

// Returns the mean and the variance of a number that is drawn from Normal(mean, deviation) again and again until it is not
// negative.
Moments redrawn_moments(double mean, double deviation) {
  if (deviation <= 0) return {mean, 0};
  const double least = -mean / deviation, hazard = normal_density(least) / normal_below(-least);
  return {mean + deviation * hazard, deviation * deviation * (1 + least * hazard - hazard * hazard)};
}

// Returns the mean and the variance of max(0, Normal(mean, deviation)).
Moments cut_moments(double mean, double deviation) {
  if (deviation <= 0) return {std::max(0., mean), 0};
  const double positive = normal_below(mean / deviation), density = normal_density(mean / deviation);
  const double first = mean * positive + deviation * density,
               square = (mean * mean + deviation * deviation) * positive + mean * deviation * density;
  return {first, square - first * first};
}

Moments latency_moments(const DelayModel& model) {
  switch (model.law) {
    case Law::constant: return {model.base, 0};
    case Law::paper: {
      const auto delay = paper_moments(model.cap);
      return {model.base * (1 + delay.mean), model.base * model.base * delay.variance};
    }
    case Law::reference: {
      const auto& law = reference_law();
      const double scale = model.base * .5 * model.factor;
      return {model.base + scale, scale * scale * (law.square / (law.mean * law.mean) - 1)};
    }
    case Law::normal: return redrawn_moments(model.base, model.deviation);
    case Law::exponential: return {model.base + model.mean, model.mean * model.mean};
    case Law::normal_cut: {
      const auto noise = cut_moments(model.mean, model.deviation);
      return {model.base + noise.mean, noise.variance};
    }
    default: return {model.base + model.mean, model.deviation * model.deviation};
  }
}

}  // namespace

double DelayModel::latency_mean() const { return latency_moments(*this).mean; }
double DelayModel::latency_deviation() const { return std::sqrt(std::max(0., latency_moments(*this).variance)); }

Random random_of(uint64_t seed, uint64_t step, uint32_t worker, uint32_t micro_batch) {
  return Random(mix64(mix64(mix64(seed) ^ step) ^ (uint64_t{worker} << 32 | micro_batch)));
}

}  // namespace unisono::sim

#include "lossy/estimator.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

// Constants of the formula that computes the estimate from a sum. T is the type of the numbers in this computation.
template <typename T>
struct Rule {
  // true: first the sum of the other ranks is scaled, then the owner's values are added. false: the values of all ranks are
  // added in rank order.
  bool adds_own_last = false;
  T scale = 1;
  uint32_t divisor = 1;
  T factor = 1;  // the result is sum / divisor * factor
};

template <typename T>
Rule<T> rule_of(const RangeTask& task, uint32_t received) {
  const auto world = static_cast<uint32_t>(task.contributions.size());
  const uint32_t divisor = task.mean ? world : 1;
  const T factor = task.mean ? T{1} : static_cast<T>(world);
  const uint32_t present = received + (task.own != nullptr);
  if (present == world && task.estimator != Estimator::horvitz_thompson) return {.divisor = divisor};
  switch (task.estimator) {
    case Estimator::stratified: break;
    case Estimator::count:
    case Estimator::count_all: return {.divisor = present, .factor = factor};
    case Estimator::horvitz_thompson:
      return {.adds_own_last = true, .scale = T{1} / static_cast<T>(1 - task.loss), .divisor = divisor};
    case Estimator::zero_fill: return {.divisor = divisor};
  }
  if (received == 0) return {.adds_own_last = true, .factor = factor};
  return {.adds_own_last = true, .scale = static_cast<T>(world - 1) / static_cast<T>(received), .divisor = divisor};
}

uint32_t received_of(const RangeTask& task) {
  uint32_t received = 0;
  for (Rank rank = 0; rank < task.contributions.size(); ++rank)
    received += rank != task.owner && task.contributions[rank] != nullptr;
  return received;
}

RangeKind kind_of(const RangeTask& task, uint32_t received) {
  if (received + 1 == task.contributions.size() && task.own != nullptr) return RangeKind::full;
  const bool own_counts = task.estimator == Estimator::count_all && task.own != nullptr;
  return received > 0 || own_counts ? RangeKind::reduced : RangeKind::empty;
}

// True if the estimator itself defines the value of an empty range. OnEmpty::zero then has no effect.
bool has_own_rule_for_empty(Estimator estimator) {
  return estimator == Estimator::zero_fill || estimator == Estimator::horvitz_thompson;
}

DType output_type(const RangeTask& task) { return task.fp32_output && task.dtype != DType::f64 ? DType::f32 : task.dtype; }

template <typename T>
void multiply(std::vector<T>& values, T factor) {
  if (factor == T{1}) return;
  for (auto& value : values) value *= factor;
}

}  // namespace

RangeKind RangeEstimator::estimate(const RangeTask& task) {
  UNISONO_CHECK(task.owner < task.contributions.size() &&
                (task.own != nullptr || task.estimator == Estimator::count_all || task.count == 0));
  const auto received = received_of(task);
  const auto kind = kind_of(task, received);
  if (task.count == 0) return kind;
  if (kind == RangeKind::empty) {
    if (task.on_empty == OnEmpty::hold || task.on_empty == OnEmpty::fail) return kind;
    if (task.own == nullptr || (task.on_empty == OnEmpty::zero && !has_own_rule_for_empty(task.estimator))) {
      std::memset(task.output, 0, task.count * element_bytes(output_type(task)));
      return kind;
    }
  }
  const bool is_unencoded = task.codec.is_plain() && task.codec.dtype == task.dtype && output_type(task) == task.dtype;
  if (kind == RangeKind::full && is_unencoded && task.estimator != Estimator::horvitz_thompson) {
    sources_.clear();
    for (Rank rank = 0; rank < task.contributions.size(); ++rank)
      sources_.push_back(rank == task.owner ? task.own : task.contributions[rank]);
    kernels::reduce({.dtype = task.dtype,
                     .sources = sources_,
                     .destination = task.output,
                     .count = task.count,
                     .divisor = rule_of<float>(task, received).divisor});
    return kind;
  }
  if (task.dtype == DType::f64) estimate_as(task, received, double_);
  else estimate_as(task, received, single_);
  return kind;
}

template <typename T>
void RangeEstimator::estimate_as(const RangeTask& task, uint32_t received, Memory<T>& memory) {
  const auto rule = rule_of<T>(task, received);
  memory.sum.resize(task.count);
  const void* own = task.own;
  if constexpr (std::is_same_v<T, float>) {
    if (own != nullptr && task.dtype != DType::f32) {
      memory.own.resize(task.count);
      own = widened(task.dtype, own, task.count, memory.own.data());
    }
  }
  sources_.clear();
  for (Rank rank = 0; rank < task.contributions.size(); ++rank) {
    if (rank == task.owner ? own != nullptr && !rule.adds_own_last : task.contributions[rank] != nullptr)
      sources_.push_back(rank == task.owner ? nullptr : task.contributions[rank]);
  }
  const void* last[2];
  size_t last_count = 0;
  if (!sources_.empty()) {
    add_up(task, own, memory);
    multiply(memory.sum, rule.scale);
    last[last_count++] = memory.sum.data();
  }
  if (rule.adds_own_last) {
    if constexpr (std::is_same_v<T, float>) own = own_as_sent(task, own, memory.own);
    last[last_count++] = own;
  }
  const bool writes_output = output_type(task) == dtype_of<T>() && rule.factor == T{1};
  kernels::reduce({.dtype = dtype_of<T>(),
                   .sources = {last, last_count},
                   .destination = writes_output ? task.output : memory.sum.data(),
                   .count = task.count,
                   .divisor = rule.divisor});
  if (writes_output) return;
  multiply(memory.sum, rule.factor);
  if constexpr (std::is_same_v<T, float>) {
    // Plain elements and encoded messages are rounded by different functions, as they are in a reliable operation.
    if (output_type(task) != DType::f32 && task.codec.is_plain())
      return kernels::convert(task.dtype, task.output, DType::f32, memory.sum.data(), task.count);
    if (output_type(task) != DType::f32)
      return narrow(task.dtype, task.output, memory.sum.data(), task.count, task.codec.block.poison, counts_);
  }
  std::memcpy(task.output, memory.sum.data(), task.count * sizeof(T));
}

// Adds the values in sources_ in their order, and stores the sum in memory.sum. sources_ must not be empty.
template <typename T>
void RangeEstimator::add_up(const RangeTask& task, const void* own, Memory<T>& memory) {
  if (task.codec.is_plain() && task.codec.dtype == dtype_of<T>()) {
    std::replace(sources_.begin(), sources_.end(), static_cast<const void*>(nullptr), own);
    return kernels::reduce(
        {.dtype = dtype_of<T>(), .sources = sources_, .destination = memory.sum.data(), .count = task.count});
  }
  if constexpr (std::is_same_v<T, double>) {
    UNISONO_CHECK(false);  // cannot happen, because contributions to an f64 tensor are always plain
  } else if (sources_.size() > 1) {
    fold({.from = task.codec,
          .messages = sources_,
          .own = own,
          .own_exact = task.own_exact,
          .count = task.count,
          .output = memory.sum.data(),
          .error = task.error},
         counts_);
  } else if (sources_.front() == nullptr) {
    std::memcpy(memory.sum.data(), own_as_sent(task, own, memory.own), task.count * sizeof(float));
  } else {
    decode({.codec = task.codec,
            .message = static_cast<const std::byte*>(sources_.front()),
            .elements = memory.sum.data(),
            .count = task.count},
           counts_);
  }
}

// Returns the owner's values (fp32) as another rank would decode them.
const void* RangeEstimator::own_as_sent(const RangeTask& task, const void* own, std::vector<float>& copy) {
  if (task.codec.is_plain() || task.own_exact) return own;
  message_.resize(task.codec.message_bytes(task.count));
  copy.resize(task.count);
  encode({.codec = task.codec, .elements = own, .count = task.count, .message = message_.data(), .error = task.error}, counts_);
  decode({.codec = task.codec, .message = message_.data(), .elements = copy.data(), .count = task.count}, counts_);
  return copy.data();
}

void EffectiveContributors::add(uint32_t received_remote, uint64_t elements, OnEmpty on_empty) {
  const double world = world_, remote = world - 1;
  const bool own_alone = received_remote == 0;
  if (own_alone && world_ > 1 && on_empty != OnEmpty::own && on_empty != OnEmpty::automatic) {
    left_out_ += elements;
    return;
  }
  const double term = own_alone ? 1 : 1 / (world * world) + remote * remote / (world * world) / received_remote;
  elements_ += elements;
  sum_ += term * static_cast<double>(elements);
}

double EffectiveContributors::value() const {
  if (elements_ == 0) return left_out_ == 0 ? world_ : 0;
  return static_cast<double>(elements_) / sum_;
}

namespace {

// Returns E[value(k) | k >= from] for k ~ Binomial(draws, 1 - loss). Requires from <= draws. The weight of each k is computed
// relative to the weight of the most likely k, so that no weight underflows if it matters for the result.
template <typename Value>
double expectation(uint32_t draws, double loss, uint32_t from, const Value& value) {
  const double q = 1 - loss;
  if (loss <= 0 || from == draws) return value(draws);
  if (q <= 0) return value(from);  // the expectation approaches this value as loss approaches 1
  const auto start = std::clamp(static_cast<uint32_t>((draws + 1.0) * q), from, draws);
  double weights = 1, sum = value(start), weight = 1;
  for (uint32_t k = start; k < draws; ++k) {
    weight *= (draws - k) / (k + 1.0) * (q / loss);
    weights += weight;
    sum += weight * value(k + 1);
  }
  weight = 1;
  for (uint32_t k = start; k > from; --k) {
    weight *= k / (draws - k + 1.0) * (loss / q);
    weights += weight;
    sum += weight * value(k - 1);
  }
  return sum / weights;
}

struct Spread {
  double mean = 0, variance = 0, squares = 0;  // variance: sample variance; squares: sum of squares
};

Spread spread_of(std::span<const double> values, size_t left_out) {
  double count = 0, sum = 0, squares = 0, deviations = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != left_out) ++count, sum += values[i], squares += values[i] * values[i];
  }
  const double mean = count > 0 ? sum / count : 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != left_out) deviations += (values[i] - mean) * (values[i] - mean);
  }
  return {mean, count > 1 ? deviations / (count - 1) : 0, squares};
}

}  // namespace

double inverse_received(uint32_t draws, double loss) {
  return draws == 0 ? 0 : expectation(draws, loss, 1, [](uint32_t k) { return 1.0 / k; });
}

double noise_inflation(Estimator estimator, uint32_t world, double loss) {
  const double n = world, remote = n - 1, q = 1 - loss;
  switch (estimator) {
    case Estimator::stratified: return 1 / n + remote * remote / n * inverse_received(world - 1, loss);
    case Estimator::count: return n * expectation(world - 1, loss, 0, [](uint32_t k) { return 1.0 / (k + 1.0); });
    case Estimator::count_all: return n * inverse_received(world, loss);
    case Estimator::horvitz_thompson: return (1 + remote / q) / n;
    case Estimator::zero_fill: return (1 + remote * q) / n;
  }
  return 1;
}

double estimator_variance(Estimator estimator, std::span<const double> values, Rank owner, double loss) {
  const auto world = static_cast<uint32_t>(values.size());
  if (world < 2) return 0;
  const double n = world, remote = n - 1, q = 1 - loss;
  const auto others = spread_of(values, owner);
  switch (estimator) {
    case Estimator::stratified:
      return remote * remote / (n * n) * others.variance * (inverse_received(world - 1, loss) - 1 / remote);
    case Estimator::count: {
      // Variance of (own + sum of R remote values) / (1 + R). Its first term is the variance over which R ranks arrive, and its
      // second term is the variance over the number R.
      const auto inverse = expectation(world - 1, loss, 0, [](uint32_t k) { return 1.0 / (k + 1.0); });
      const auto square = expectation(world - 1, loss, 0, [](uint32_t k) { return 1.0 / ((k + 1.0) * (k + 1.0)); });
      const auto drawn =
          expectation(world - 1, loss, 0, [&](uint32_t k) { return k * (1 - k / remote) / ((k + 1.0) * (k + 1.0)); });
      const double gap = values[owner] - others.mean;
      return others.variance * drawn + gap * gap * (square - inverse * inverse);
    }
    case Estimator::count_all: return spread_of(values, values.size()).variance * (inverse_received(world, loss) - 1 / n);
    case Estimator::horvitz_thompson: return loss / (q * n * n) * others.squares;
    case Estimator::zero_fill: return loss * q / (n * n) * others.squares;
  }
  return 0;
}

}  // namespace unisono

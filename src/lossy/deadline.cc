#include "lossy/deadline.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace unisono {
namespace {

// The learning phase ends when both windows (of stream durations and of phase durations) hold at least this many durations.
constexpr size_t learning_durations_min = 20;
// A bad cut means that t_hard ended a stream while more than loss_budget of its data was missing. After this many operations
// without a bad cut, deadline_min_ becomes 0 again.
constexpr uint32_t calm_operations_min = 16;
constexpr double clean_missing = 0.0005;
constexpr Nanos soft_min = millisecond, hard_min = 5 * millisecond;
constexpr Nanos grace_min = 200 * microsecond, grace_max = 5 * millisecond;

Nanos one_and_a_half_times(Nanos deadline) { return deadline + deadline / 2; }

template <typename Value>
double median_of(Value* begin, size_t count) {
  auto* const middle = begin + count / 2;
  std::nth_element(begin, middle, begin + count);
  const auto upper = static_cast<double>(*middle);
  if (count % 2 != 0) return upper;
  return (static_cast<double>(*std::max_element(begin, middle)) + upper) / 2;
}

}  // namespace

void DurationWindow::add(Nanos duration) {
  values_[next_] = duration;
  next_ = (next_ + 1) % capacity;
  size_ = std::min(size_ + 1, capacity);
}

double DurationWindow::median() const {
  UNISONO_CHECK(size_ > 0);
  auto values = values_;
  return median_of(values.data(), size_);
}

double DurationWindow::deviation() const {
  const double middle = median();
  std::array<double, capacity> distances{};
  for (size_t i = 0; i < size_; ++i) distances[i] = std::abs(static_cast<double>(values_[i]) - middle);
  return median_of(distances.data(), size_);
}

Nanos DurationWindow::p95() const {
  UNISONO_CHECK(size_ > 0);
  auto values = values_;
  auto* const found = values.data() + (95 * size_ + 99) / 100 - 1;
  std::nth_element(values.data(), found, values.data() + size_);
  return *found;
}

void Deadline::stream_ended(Nanos duration) { streams_.add(duration); }

// Records 1.5 times the deadline, because the stream would have lasted longer without the deadline. If the deadline itself were
// recorded, the deadlines would shrink from one operation to the next.
void Deadline::stream_cut(Nanos deadline) { streams_.add(one_and_a_half_times(deadline)); }

void Deadline::phase_ended(const PhaseOutcome& outcome) {
  if (!outcome.silent_peer) phases_.add(outcome.cut_by_hard ? one_and_a_half_times(outcome.hard) : outcome.duration);
  missing_[missing_next_] = outcome.missing_fraction;
  missing_next_ = (missing_next_ + 1) % missing_.size();
  missing_size_ = std::min(missing_size_ + 1, missing_.size());
  if (outcome.cut_missing > settings_.loss_budget) {
    deadline_min_ = std::max(deadline_min_, one_and_a_half_times(outcome.hard));
    calm_operations_ = 0;
  } else if (++calm_operations_ >= calm_operations_min) {
    deadline_min_ = 0;
  }
}

bool Deadline::learning() const { return streams_.size() < learning_durations_min || phases_.size() < learning_durations_min; }

Nanos Deadline::hard() const {
  if (settings_.fixed != 0) return std::min(settings_.fixed, settings_.hard_max);
  if (learning()) return settings_.hard_max;
  return std::min(std::max({2 * phases_.p95(), hard_min, deadline_min_}), settings_.hard_max);
}

Nanos Deadline::soft(Nanos agreed_hard) const { return links_are_clean() ? agreed_hard : soft_from_durations(agreed_hard); }

Nanos Deadline::soft_from_durations(Nanos agreed_hard) const {
  if (learning()) return agreed_hard;
  const double middle = streams_.median();
  const auto from_durations = static_cast<Nanos>(std::max(1.25 * middle, middle + 6 * streams_.deviation()));
  return std::min(std::max({from_durations, soft_min, deadline_min_}), agreed_hard);
}

Nanos Deadline::grace(Nanos soft) { return std::clamp(soft / 8, grace_min, grace_max); }

bool Deadline::links_are_clean() const {
  double sum = 0;
  for (size_t i = 0; i < missing_size_; ++i) sum += missing_[i];
  return sum < clean_missing * static_cast<double>(missing_size_);
}

namespace {

// Returns the k-th smallest of the values above 0 (k = 0: the smallest). Bisection needs no extra memory.
Nanos kth_smallest(std::span<const Nanos> values, size_t k) {
  Nanos low = 0, high = *std::max_element(values.begin(), values.end());
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    const auto below = static_cast<size_t>(
        std::count_if(values.begin(), values.end(), [&](Nanos value) { return value > 0 && value <= middle; }));
    (below > k ? high : low) = middle;
  }
  return high;
}

}  // namespace

Nanos agreed_deadline(std::span<const Nanos> announced, Nanos own) {
  const auto count =
      static_cast<size_t>(std::count_if(announced.begin(), announced.end(), [](Nanos value) { return value > 0; }));
  if (count == 0) return own;
  const auto upper = kth_smallest(announced, count / 2);
  if (count % 2 != 0) return upper;
  const auto lower = kth_smallest(announced, count / 2 - 1);
  return lower + (upper - lower) / 2;
}

}  // namespace unisono

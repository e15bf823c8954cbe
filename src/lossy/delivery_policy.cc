#include "lossy/delivery_policy.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/concat.h"

namespace unisono {
namespace {

// The policy looks back over this many operations:
// - off_window before it changes to reliable delivery because much is lost
// - on_window before it changes to lossy delivery because some phases take much longer than most
// - back_window before it changes to reliable delivery because almost nothing is lost any more
constexpr uint32_t off_window = 20, on_window = 64, back_window = 256;
constexpr double tail_ratio_min = 1.5, loss_min = 0.001, loss_back = 0.0005;

// Formats a fraction as a percentage with one to three decimals.
std::string percent(double fraction) {
  const auto scaled = std::lround(fraction * 1e5);
  std::string digits = std::to_string(scaled % 1000);
  digits.insert(0, 3 - digits.size(), '0');
  while (digits.size() > 1 && digits.back() == '0') digits.pop_back();
  return concat(scaled / 1000, ".", digits, " %");
}

double median_of(std::span<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

std::string over(double fraction, uint32_t operations) {
  return concat("loss of ", percent(fraction), " over ", operations, " operations");
}

}  // namespace

DeliveryPolicy::Sum DeliveryPolicy::last(uint32_t operations) const {
  Sum sum;
  for (uint32_t back = 0; back < operations; ++back) {
    sum.expected += outcome(back).expected;
    sum.missing += outcome(back).missing;
  }
  return sum;
}

// Returns the P95 of the phase times divided by their median. Before this, each time is divided by the median of its size
// class, because otherwise a few large tensors among small ones would look like slow phases.
double DeliveryPolicy::tail_ratio() const {
  std::array<double, on_window> medians{}, ratios{}, same_class{};
  for (uint32_t i = 0; i < on_window; ++i) {
    size_t count = 0;
    for (uint32_t j = 0; j < on_window; ++j) {
      if (outcome(j).size_class != outcome(i).size_class) continue;
      if (j < i) medians[i] = medians[j];
      same_class[count++] = static_cast<double>(outcome(j).phase_duration);
    }
    if (medians[i] == 0) medians[i] = median_of({same_class.data(), count});
    ratios[i] = medians[i] > 0 ? static_cast<double>(outcome(i).phase_duration) / medians[i] : 1;
  }
  const double median = median_of(ratios);  // median_of() also sorts ratios, which the next line needs
  return median > 0 ? ratios[(95 * on_window + 99) / 100 - 1] / median : 1;
}

bool DeliveryPolicy::change(Delivery to, std::string note) {
  current_ = to;
  note_ = std::move(note);
  since_change_ = 0;
  return true;
}

bool DeliveryPolicy::operation_ended(const DeliveryOutcome& outcome) {
  outcomes_[count_++ % outcomes_.size()] = outcome;
  ++since_change_;
  if (requested_ == Delivery::reliable || is_switched_off_) return false;
  if (current_ == Delivery::lossy) {
    if (since_change_ >= off_window) {
      const double loss = last(off_window).fraction();
      if (loss > loss_off_) {
        is_switched_off_ = requested_ == Delivery::lossy;
        return change(Delivery::reliable, over(loss, off_window) + " is above loss_off, " + percent(loss_off_) +
                                              ": reliable delivery" + (is_switched_off_ ? " from now on" : ""));
      }
    }
    if (requested_ != Delivery::automatic || since_change_ < back_window) return false;
    const double loss = last(back_window).fraction();
    return loss < loss_back && change(Delivery::reliable, over(loss, back_window) + " is below " + percent(loss_back) +
                                                              ": reliable delivery again");
  }
  if (since_change_ < on_window) return false;
  const double loss = last(on_window).fraction();
  if (loss < loss_min || loss > loss_budget_) return false;
  const double ratio = tail_ratio();
  if (ratio <= tail_ratio_min) return false;
  const auto times = std::lround(ratio * 10);
  return change(Delivery::lossy, concat(over(loss, on_window), ", and the P95 of the phase time is ", times / 10, ".",
                                        times % 10, " times the median: lossy delivery"));
}

}  // namespace unisono

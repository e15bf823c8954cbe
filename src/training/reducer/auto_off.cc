#include "training/reducer/auto_off.h"

#include <algorithm>
#include <cstdio>

namespace unisono {
namespace {

double median_after(std::vector<double> times, size_t untimed) {
  times.erase(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(std::min(untimed, times.size() - 1)));
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace

Sending AutoOff::next(uint64_t step) const {
  if (off_ || step < options_.start_step) return Sending::plain;
  if (retesting_) return whole_us_.empty() ? Sending::whole : Sending::plain;
  return Sending::compressed;
}

// Adds a duration, and keeps only the last `window` of them.
void AutoOff::record(std::vector<double>& times, double us) {
  times.push_back(us);
  if (times.size() > options_.window) times.erase(times.begin());
}

std::optional<AutoOff::Medians> AutoOff::record_step(uint64_t step, Sending sent, double us) {
  if (!options_.enabled || off_) return {};
  const size_t window = options_.window;
  if (sent == Sending::compressed) {
    ++compressed_;
    record(compressed_us_, us);
    // The first decision uses the durations of the uncompressed steps at the start of training, if there were enough of them.
    // For each later decision, uncompressed steps are timed again after `period` compressed steps.
    if (compressed_ == window && whole_us_.size() == window)
      return Medians{median_after(whole_us_, options_.untimed), median_after(compressed_us_, options_.untimed)};
    if (compressed_ >= options_.period && compressed_us_.size() == window) retesting_ = true, whole_us_.clear();
    return {};
  }
  if (step < options_.start_step) return record(whole_us_, us), std::nullopt;
  if (!retesting_) return {};
  record(whole_us_, us);
  if (whole_us_.size() < window) return {};
  retesting_ = false;
  return Medians{median_after(whole_us_, options_.untimed), median_after(compressed_us_, options_.untimed)};
}

void AutoOff::decide(const Medians& averaged) {
  compressed_ = 0;
  whole_us_.clear();
  off_ = averaged.compressed_us > (1 - options_.gain) * averaged.whole_us;
  if (!off_) return;
  char text[160];
  std::snprintf(text, sizeof text, "a step took %.3f ms compressed and %.3f ms uncompressed: the gain is less than %.0f %%",
                averaged.compressed_us / 1000, averaged.whole_us / 1000, 100 * options_.gain);
  reason_ = text;
}

void AutoOff::restart(bool off) {
  if (off && !off_) reason_ = "another rank had already switched compression off";
  off_ = off;
  retesting_ = false;
  compressed_ = 0;
  whole_us_.clear();
  compressed_us_.clear();
}

}  // namespace unisono

// Decides how payloads are written into shared memory: through the caches, or with non-temporal stores, which bypass the
// caches. This is a state machine: the caller tells it how long each copy took.
//
// The core that last read a reused slot has the slot in its cache. A write through the caches first fetches the slot's cache
// lines from that core. This is cheap if the writing and the reading core share a cache. Otherwise it is most of the cost:
// between distant cores, writes through the caches reached 4 GB/s, and writes that bypass the caches reached 15 GB/s. If the
// cores share a cache, however, both writing and reading are faster through it.
//
// Hosts also move virtual processors to other cores. The way of writing that is not in use is therefore tried from time to
// time, and also when writes become slower. Such a trial takes several slices. A trial of writes through the caches needs many
// slices, because only slots that were last written through the caches show the true cost.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

class SlotStores {
 public:
  static constexpr size_t bytes_min = 16u << 10;  // the time of smaller slices is too inexact to be used

  // Returns true if the next slice bypasses the caches. Slices up to a page never do, because the reader would have to wait for
  // memory.
  bool past_caches(size_t bytes) const { return bytes > 4096 && past_ != (trying_ && bytes >= bytes_min); }
  // Call it after a slice of at least bytes_min was copied into a slot in the way that past_caches() said.
  void filled(size_t bytes, Nanos took) {
    const double cost = static_cast<double>(took) / static_cast<double>(bytes);
    const size_t size = std::min<size_t>(std::bit_width(bytes), sizes - 1);
    if (trying_) return tried(usual_[size], cost);
    // Limit outliers: if this process is interrupted during a copy, the copy looks slower than it is.
    double& usual = usual_[size];
    usual = usual == 0 ? cost : usual + (std::min(cost, 2 * usual) - usual) / 16;
    const bool slow = settled_[size] > 0 && cost > slow_factor * settled_[size];
    evidence_ = slow ? evidence_ + 1 : evidence_ - (evidence_ > 0);
    if (++slices_ == until_try_ || evidence_ == slices_of_evidence) try_other_way();
  }
  bool past() const { return past_; }

 private:
  // A trial succeeds if most of its judged slices have a cost below factor * usual cost. past_factor is the factor for
  // bypassing the caches. It is below 1, because bypassing costs the reader time, and the writer must gain more than that. With
  // a factor of 1, ranks on cores that share a cache would bypass it, and would lose twice what they gain.
  static constexpr double past_factor = 0.65, through_factor = 1.3;
  static constexpr double slow_factor = 1.6;
  static constexpr uint32_t slices_of_evidence = 16;
  static constexpr uint32_t slices_before_first_try = 256;  // before that, most slots are used for the first time
  static constexpr uint32_t slices_between_tries = 2048;
  // The number of slices in a trial of each way. slices_through is large enough that two alternating ranks write each slot
  // twice.
  static constexpr uint32_t slices_past = 8, slices_through = 32;
  static constexpr uint32_t slices_that_count = 8;  // only this many slices at the end of a trial are judged
  static constexpr size_t sizes = 32;
  using Costs = std::array<double, sizes>;  // ns per byte, indexed by log2 of the slice size; 0: unknown

  void tried(double usual, double cost) {
    const uint32_t slices = past_ ? slices_through : slices_past;
    if (++slices_ + slices_that_count > slices && usual > 0) {
      ++counted_;
      better_ += cost < (past_ ? through_factor : past_factor) * usual;
    }
    if (slices_ < slices) return;
    if (2 * better_ > counted_) {
      past_ = !past_;
      usual_ = {};
    }
    settled_ = usual_;
    trying_ = false;
    until_try_ = slices_between_tries;
    slices_ = evidence_ = 0;
  }
  void try_other_way() {
    trying_ = true;
    slices_ = counted_ = better_ = 0;
  }

  Costs usual_{};    // average costs of the way that is in use
  Costs settled_{};  // the values of usual_ at the end of the last trial
  bool past_ = false, trying_ = false;
  uint32_t slices_ = 0, until_try_ = slices_before_first_try;  // slices since the last trial, or within the running one
  // Each slow slice adds 1, and each other slice subtracts 1, down to 0. A large number suggests that the costs have changed.
  uint32_t evidence_ = 0;
  uint32_t counted_ = 0, better_ = 0;
};

}  // namespace unisono

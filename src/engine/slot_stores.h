// Decides whether payloads are written into shared memory through the caches or past them. A state machine: the times of copies
// come in.
//
// A slot that is used again lies in the cache of the core that read it last, and each of its lines has to be fetched back
// before it is written. Where both cores share a cache that costs next to nothing. Where they do not, it costs more than
// everything else: two virtual processors that the host runs on far cores wrote 4 GB/s that way and 15 GB/s past the caches,
// whatever instructions did it. Near cores on the other hand write faster through the cache, and read a slot faster from it
// than from memory. And a host moves its virtual processors, so it is found out again and again: from time to time, and when
// writing has become slower, slices go the other way to see. Several, because what counts when they go through the caches is a
// slot that went that way before: one whose lines are in no cache or only in the reader's takes longer.
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
  static constexpr size_t bytes_min = 16u << 10;  // of a slice whose time says something

  // How to write the next slice. A page or less goes through the caches: the reader would only wait for memory.
  bool past_caches(size_t bytes) const { return bytes > 4096 && past_ != (trying_ && bytes >= bytes_min); }
  // A slice was copied into a slot as past_caches() said; of bytes_min or more.
  void filled(size_t bytes, Nanos took) {
    const double cost = static_cast<double>(took) / static_cast<double>(bytes);
    const size_t size = std::min<size_t>(std::bit_width(bytes), sizes - 1);
    if (trying_) return tried(usual_[size], cost);
    // Interruptions of a process only ever make a copy slower.
    double& usual = usual_[size];
    usual = usual == 0 ? cost : usual + (std::min(cost, 2 * usual) - usual) / 16;
    const bool slow = settled_[size] > 0 && cost > slow_factor * settled_[size];
    evidence_ = slow ? evidence_ + 1 : evidence_ - (evidence_ > 0);
    if (++slices_ == until_try_ || evidence_ == slices_of_evidence) try_other_way();
  }
  bool past() const { return past_; }

 private:
  // The writer's gain by going past the caches has to make up for the reader's loss: near cores lose twice as much as they gain
  // at a factor of 1.
  static constexpr double past_factor = 0.65, through_factor = 1.3;  // of what is usual now, to change to that way
  static constexpr double slow_factor = 1.6;
  static constexpr uint32_t slices_of_evidence = 16;
  static constexpr uint32_t slices_before_first_try = 256;  // most slots are new
  static constexpr uint32_t slices_between_tries = 2048;
  static constexpr uint32_t slices_past = 8,
                            slices_through = 32;    // of a try; through the caches, slots that two ranks use in turn, twice
  static constexpr uint32_t slices_that_count = 8;  // the last of them
  static constexpr size_t sizes = 32;
  using Costs = std::array<double, sizes>;  // ns per byte, by the logarithm of a slice's size; 0: not known

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

  Costs usual_{};    // of the way that slices go now
  Costs settled_{};  // the same when the last try ended
  bool past_ = false, trying_ = false;
  uint32_t slices_ = 0, until_try_ = slices_before_first_try;  // since the last try, or of this one
  uint32_t evidence_ = 0;                                      // that something has changed
  uint32_t counted_ = 0, better_ = 0;
};

}  // namespace unisono

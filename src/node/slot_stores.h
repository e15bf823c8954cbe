// Whether payloads are written into shared memory through the caches or past them. A state machine: it is told what took how long.
//
// A slot that is used again lies in the cache of whoever read it last, and to be written each of its lines has to be fetched back.
// Where both cores share a cache that costs next to nothing. Where they do not, it costs more than everything else: two virtual
// processors that the host runs on far cores wrote 2 GB/s that way and 9 GB/s past the caches, whatever instructions did it.
// Near cores on the other hand read a slot faster from the cache than from memory. And a host moves its virtual processors, so it
// is found out again and again: past the caches while writes through them take much longer than the process's other passes
// over memory; from time to time slices go through the caches to see. Several, because what counts is a slot that went that way
// before: one whose pages are new, or whose lines are in no cache or only in the reader's, takes longer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

class SlotStores {
 public:
  static constexpr size_t bytes_min = 16u << 10;  // of a slice whose time says something

  // How to write the next slice. Of a page or less the reader would only wait for memory.
  bool past_caches(size_t bytes) {
    if (!far_ || bytes <= 4096) return false;
    if (bytes < bytes_min) return true;
    if (past_ == slices_between_tries) return false;
    ++past_;
    return true;
  }
  // A pass over `bytes`, read and written, that wrote no slot.
  void worked(size_t bytes, Nanos took) {
    const double cost = static_cast<double>(took) / static_cast<double>(bytes);
    // What interrupts a process only ever adds.
    usual_ = usual_ == 0 ? cost : usual_ + (std::min(cost, 2 * usual_) - usual_) / 16;
  }
  // A slice was written through the caches; `bytes` as above.
  void filled(size_t bytes, Nanos took) {
    if (usual_ == 0) return;
    const bool slow = static_cast<double>(took) > slow_factor * usual_ * static_cast<double>(bytes);
    if (!far_) {
      evidence_ = slow ? evidence_ + 1 : evidence_ - (evidence_ > 0);
      if (evidence_ == slices_of_a_try) be(true);
      return;
    }
    evidence_ += !slow && tried_ >= slices_of_a_try - slices_that_count;
    if (++tried_ == slices_of_a_try) be(2 * evidence_ < slices_that_count);
  }
  bool far() const { return far_; }

 private:
  static constexpr double slow_factor = 4.5;  // then a reader that fetches from memory loses less than the writer gains
  static constexpr uint32_t slices_of_a_try = 32;    // the slots that two ranks use in turn, twice
  static constexpr uint32_t slices_that_count = 8;   // the last of them
  static constexpr uint32_t slices_between_tries = 2048;

  void be(bool far) {
    far_ = far;
    evidence_ = tried_ = past_ = 0;
  }

  double usual_ = 0;       // ns per byte
  uint32_t evidence_ = 0;  // for the other way
  uint32_t tried_ = 0, past_ = 0;
  bool far_ = false;
};

}  // namespace unisono

// Whether payloads are written into shared memory through the caches or past them. A state machine: it is told what took how long.
//
// A slot that is used again lies in the cache of whoever read it last, and to be written each of its lines has to be fetched back.
// Where both cores share a cache that costs next to nothing. Where they do not, it costs more than everything else: two virtual
// processors that the host runs on far cores wrote 2 GB/s that way and 9 GB/s past the caches, whatever instructions did it.
// Near cores on the other hand read a slot faster from the cache than from memory. And a host moves its virtual processors, so it
// is found out again and again: past the caches while writes through them take much longer than the process's other passes
// over memory; from time to time one slice goes through the caches to see.
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
    return ++slices_ % slices_per_try != 0;
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
    agreeing_ = slow != far_ ? agreeing_ + 1 : 0;
    if (agreeing_ < slices_to_change) return;
    far_ = slow;
    agreeing_ = 0;
  }
  bool far() const { return far_; }

 private:
  static constexpr double slow_factor = 2.5;
  static constexpr uint32_t slices_to_change = 3;
  static constexpr uint32_t slices_per_try = 32;

  double usual_ = 0;  // ns per byte
  uint32_t agreeing_ = 0, slices_ = 0;
  bool far_ = false;
};

}  // namespace unisono

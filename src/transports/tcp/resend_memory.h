// Counts the memory of copies that are kept so that they can be sent again. One counter limits a link, and all links of a
// process share another one. The class only counts; the copies are blocks of a PayloadPool.
//
// Thread-safe: the transports of several threads may share the counter of the process.
#pragma once

#include <atomic>
#include <cstddef>

namespace unisono {

class ResendMemory {
 public:
  static constexpr size_t link_bytes_max = 16u << 20;
  static constexpr size_t process_bytes_max = 256u << 20;

  // `whole` also counts everything that this counter counts. It must live longer.
  explicit ResendMemory(size_t bytes_max, ResendMemory* whole = nullptr) : bytes_max_(bytes_max), whole_(whole) {}
  ResendMemory(const ResendMemory&) = delete;
  ResendMemory& operator=(const ResendMemory&) = delete;

  // Returns false, and counts nothing, if this counter or the whole would exceed its limit.
  [[nodiscard]] bool take(size_t bytes);
  void give(size_t bytes);
  // If more is counted already, only new copies are refused.
  void set_limit(size_t bytes_max) { bytes_max_.store(bytes_max, std::memory_order_relaxed); }
  size_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  std::atomic<size_t> bytes_max_;
  ResendMemory* const whole_;
  std::atomic<size_t> used_{0};
};

// The counter that all TCP links of this process share.
ResendMemory& process_resend_memory();

}  // namespace unisono

#include "transports/tcp/resend_memory.h"

#include "base/check.h"

namespace unisono {

// The counters order no other memory, so relaxed operations are enough.
bool ResendMemory::take(size_t bytes) {
  const size_t bytes_max = bytes_max_.load(std::memory_order_relaxed);
  size_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > bytes_max || used > bytes_max - bytes) return false;
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  if (whole_ == nullptr || whole_->take(bytes)) return true;
  used_.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

void ResendMemory::give(size_t bytes) {
  const size_t before = used_.fetch_sub(bytes, std::memory_order_relaxed);
  UNISONO_CHECK(before >= bytes);
  if (whole_ != nullptr) whole_->give(bytes);
}

ResendMemory& process_resend_memory() {
  // It is never destroyed, because links may end after the static objects of the process.
  static auto& memory = *new ResendMemory(ResendMemory::process_bytes_max);
  return memory;
}

}  // namespace unisono

// Reusable buffers for incoming contributions and unexpected messages, by powers of two. Not thread-safe.
//
// The total in use is bounded by the engine's limits (FlowLimits per operation and partner); the pool keeps at most
// keep_bytes of free buffers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace unisono {

class BufferPool {
 public:
  explicit BufferPool(size_t keep_bytes) : keep_bytes_(keep_bytes) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool() {
    for (auto& list : free_) {
      for (auto* buffer : list) ::operator delete(buffer, alignment);
    }
  }

  std::byte* take(size_t bytes) {
    const auto shift = class_of(bytes);
    used_bytes_ += size_t{1} << shift;
    auto& list = free_[shift];
    if (list.empty()) return static_cast<std::byte*>(::operator new(size_t{1} << shift, alignment));
    auto* buffer = list.back();
    list.pop_back();
    kept_bytes_ -= size_t{1} << shift;
    return buffer;
  }
  // bytes as given to take.
  void give(const std::byte* data, size_t bytes) {
    auto* buffer = const_cast<std::byte*>(data);
    const auto shift = class_of(bytes);
    const auto size = size_t{1} << shift;
    used_bytes_ -= size;
    if (kept_bytes_ + size > keep_bytes_) return ::operator delete(buffer, alignment);
    kept_bytes_ += size;
    free_[shift].push_back(buffer);
  }
  size_t used_bytes() const { return used_bytes_; }

 private:
  static constexpr std::align_val_t alignment{64};
  static size_t class_of(size_t bytes) { return bytes <= 4096 ? 12 : static_cast<size_t>(std::bit_width(bytes - 1)); }

  size_t keep_bytes_;
  size_t used_bytes_ = 0, kept_bytes_ = 0;
  std::array<std::vector<std::byte*>, 64> free_;
};

}  // namespace unisono

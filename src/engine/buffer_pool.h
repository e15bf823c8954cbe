// Reusable buffers for incoming contributions and early messages. The sizes of buffers are powers of two. The pool is not
// thread-safe.
//
// The engine's FlowLimits bound the buffers in use, for each operation and peer. The pool keeps at most keep_bytes of free
// buffers.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace unisono {

class BufferPool {
 public:
  explicit BufferPool(size_t keep_bytes) : keep_bytes_(keep_bytes) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  // Frees all buffers, even those in use, because an operation that never ended cannot release its buffers.
  ~BufferPool() {
    while (out_ != nullptr) {
      auto* block = out_;
      out_ = block->next;
      ::operator delete(block, alignment);
    }
    for (auto* block : free_) {
      while (block != nullptr) ::operator delete(std::exchange(block, block->next), alignment);
    }
  }

  std::byte* take(size_t bytes) {
    const auto shift = class_of(bytes);
    const auto size = size_t{1} << shift;
    auto* block = free_[shift];
    if (block == nullptr) {
      block = new (::operator new(sizeof(Block) + size, alignment)) Block;
    } else {
      free_[shift] = block->next;
      kept_bytes_ -= size;
    }
    used_bytes_ += size;
    block->next = out_;
    block->previous = nullptr;
    if (out_ != nullptr) out_->previous = block;
    out_ = block;
    return reinterpret_cast<std::byte*>(block + 1);
  }
  // Takes a buffer back. bytes: the size that was passed to take(). It allocates nothing, so it cannot fail.
  void release(const std::byte* data, size_t bytes) {
    auto* block = reinterpret_cast<Block*>(const_cast<std::byte*>(data)) - 1;
    if (block->next != nullptr) block->next->previous = block->previous;
    (block->previous != nullptr ? block->previous->next : out_) = block->next;
    const auto shift = class_of(bytes);
    const auto size = size_t{1} << shift;
    used_bytes_ -= size;
    if (kept_bytes_ + size > keep_bytes_) return ::operator delete(block, alignment);
    kept_bytes_ += size;
    block->next = std::exchange(free_[shift], block);
  }
  size_t used_bytes() const { return used_bytes_; }

 private:
  static constexpr std::align_val_t alignment{64};
  // The header in front of every buffer. It links the buffer into the list of used buffers, or into the list of free buffers of
  // the same size.
  struct alignas(64) Block {
    Block* next = nullptr;
    Block* previous = nullptr;
  };
  static size_t class_of(size_t bytes) { return bytes <= 4096 ? 12 : static_cast<size_t>(std::bit_width(bytes - 1)); }

  size_t keep_bytes_;
  size_t used_bytes_ = 0, kept_bytes_ = 0;
  Block* out_ = nullptr;
  std::array<Block*, 64> free_{};
};

}  // namespace unisono

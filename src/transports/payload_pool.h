// Reused memory for payloads that a transport keeps for a while: zero-copy views for the sink, and copies of what a sender
// gave.
//
// Blocks have power-of-two sizes. Used blocks are kept up to a limit. A handle names a block and is never 0. The bytes that one
// owner (a peer) holds are limited, so that views kept from one peer cannot starve the others. Not thread-safe. The destructor
// frees blocks that are still out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace unisono {

struct PayloadPoolLimits {
  // Four frames of the largest size. When an owner holds this much, take() refuses. The transport then stops reading from that
  // peer until something is released, and the network's flow control holds the peer back.
  size_t owner_bytes_max = 64u << 20;
  // Free blocks beyond it go back to the operating system.
  size_t kept_bytes_max = 64u << 20;
};

class PayloadPool {
 public:
  // Owner for blocks that are limited elsewhere (copies in a bounded send queue).
  static constexpr uint32_t no_owner = UINT32_MAX;

  struct Block {
    std::byte* data = nullptr;
    uint64_t handle = 0;
    explicit operator bool() const { return data != nullptr; }
  };

  explicit PayloadPool(const PayloadPoolLimits& limits) : limits_(limits) {}
  PayloadPool(const PayloadPool&) = delete;
  PayloadPool& operator=(const PayloadPool&) = delete;

  // At least `bytes` of memory, 64-byte aligned. Empty if the owner holds too much already, or if the system has no more. An
  // owner that holds nothing is never refused because of its limit.
  Block take(uint32_t owner, size_t bytes);
  bool may_take(uint32_t owner, size_t bytes) const;
  // Returns a block. Handles that are unknown or already returned are ignored.
  void give(uint64_t handle);

  size_t held_bytes(uint32_t owner) const { return owner < held_.size() ? held_[owner] : 0; }
  size_t kept_bytes() const { return kept_bytes_; }
  size_t blocks_out() const { return blocks_out_; }

 private:
  static constexpr size_t smallest_shift = 12;
  static constexpr size_t class_count = 40;
  struct Free {
    void operator()(std::byte* data) const;
  };
  struct Record {
    std::unique_ptr<std::byte, Free> data;
    uint32_t owner = no_owner;
    uint8_t size_class = 0;
    bool out = false;
  };
  static size_t rounded(size_t bytes);
  static size_t class_bytes(size_t size_class) { return size_t{1} << (smallest_shift + size_class); }
  uint32_t fresh_record(size_t size_class);

  PayloadPoolLimits limits_;
  std::vector<Record> records_;                          // handle - 1 is the index
  std::array<std::vector<uint32_t>, class_count> free_;  // records with memory, by class
  std::vector<uint32_t> empty_;                          // records without memory
  std::vector<size_t> held_;                             // by owner
  size_t kept_bytes_ = 0;
  size_t blocks_out_ = 0;
};

}  // namespace unisono

// Memory for payloads that is used again and again. Blocks of the pool hold the zero-copy views that the sink gets, and copies
// of payloads that a sender cannot keep.
//
// The size of a block is a power of two. Returned blocks are kept for reuse, up to a limit. A handle identifies a block and is
// never 0. Every block has an owner (a peer), and each owner may hold only a limited number of bytes. Therefore the views of
// one peer cannot starve the other peers. A block may have several users; it is back in the pool when each of them has
// returned it. The class is not thread-safe. The destructor also frees blocks that have not been returned.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace unisono {

struct PayloadPoolLimits {
  // Limits the bytes of one owner: to four frames of the largest size. When an owner holds this much, take() refuses. The
  // transport then stops reading from that peer until a view is released, and the network's flow control makes the peer wait.
  size_t owner_bytes_max = 64u << 20;
  // Limits the bytes of the free blocks that are kept for reuse. Free blocks beyond this limit are given back to the operating
  // system.
  size_t kept_bytes_max = 64u << 20;
};

class PayloadPool {
 public:
  // The owner of blocks that need no limit. An example are copies in a send queue whose length is already limited.
  static constexpr uint32_t no_owner = UINT32_MAX;
  // The owner of receive buffers that the transport itself uses. They have no limit, and blocks_out() does not count them.
  static constexpr uint32_t inbox_owner = UINT32_MAX - 1;

  struct Block {
    std::byte* data = nullptr;
    uint64_t handle = 0;
    explicit operator bool() const { return data != nullptr; }
  };

  explicit PayloadPool(const PayloadPoolLimits& limits) : limits_(limits) {}
  PayloadPool(const PayloadPool&) = delete;
  PayloadPool& operator=(const PayloadPool&) = delete;

  // Returns a block of at least `bytes`, aligned to 64 bytes. Returns an empty block if the system has no memory, or if the
  // owner would exceed its limit. But an owner that holds nothing always gets one block, even if this block exceeds the limit.
  Block take(uint32_t owner, size_t bytes);
  bool may_take(uint32_t owner, size_t bytes) const;
  // Returns true if the owner's limit leaves room for a block of at least `bytes`.
  bool has_room(uint32_t owner, size_t bytes) const {
    return !has_limit(owner) || held_bytes(owner) + block_bytes(bytes) <= limits_.owner_bytes_max;
  }
  // Ends one use of a block, and takes the block back if this was its last one. Handles that are unknown or already returned
  // are ignored.
  void give(uint64_t handle);
  // Adds a user to a block that is out.
  void share(uint64_t handle) { ++records_[handle - 1].users; }
  bool is_shared(uint64_t handle) const { return records_[handle - 1].users > 1; }
  // Makes `owner` the owner of a block that is out, even if this exceeds the limit of the owner.
  void set_owner(uint64_t handle, uint32_t owner);

  // Returns how much memory a block for `bytes` takes.
  static size_t block_bytes(size_t bytes) { return std::bit_ceil(std::max(bytes, size_t{1} << smallest_shift)); }
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
    uint32_t users = 0;  // 0: the block is not out
    uint8_t size_class = 0;
  };
  static size_t class_bytes(size_t size_class) { return size_t{1} << (smallest_shift + size_class); }
  static bool has_limit(uint32_t owner) { return owner < inbox_owner; }
  uint32_t fresh_record(size_t size_class);
  void begin_holding(Record& record, uint32_t owner);
  void end_holding(Record& record);

  PayloadPoolLimits limits_;
  std::vector<Record> records_;                          // The block with the handle h is records_[h - 1].
  std::array<std::vector<uint32_t>, class_count> free_;  // for each size class: the indices of free records that have memory
  std::vector<uint32_t> empty_;                          // indices of records without memory
  std::vector<size_t> held_;                             // how many bytes each owner holds
  size_t kept_bytes_ = 0;
  size_t blocks_out_ = 0;
};

}  // namespace unisono

// The two rings of a link, each with one writer and one reader: frames in one direction, released slots in the other.
//
// Both publish by a number inside the entry itself (sequence or lap), so a reader touches one cache line per entry and no
// shared index. The frame ring can be full. Its writer reads the reader's head, which is in the reader's arena, only when its
// last known value says so. The release ring cannot be full: the quota bounds how many slots are held. Publishing is a seq_cst
// store, because the writer then checks whether the reader sleeps (Bell in shm_host.h). A writer that publishes to several
// readers uses release stores and one fence for all: each seq_cst store waits until its cache line has come from the other
// core.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/shm_arena.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono::shm {

// The content of a cell. A payload larger than a slot goes as one `first` and several `next`, each of piece_bytes except the
// last. A link has at most one such frame in flight in each direction. `abort` ends it early.
enum class CellType : uint8_t { whole = 0, first = 1, next = 2, abort = 3 };

struct Entry {
  FrameHeader header;  // magic filled in, header_checksum zero
  CellType type = CellType::whole;
  uint32_t ref = 0;  // of the payload's slot
};

// The memory order for several publications in a row, and the fence between the last of them and the wake-ups.
#if defined(__SANITIZE_THREAD__)  // it knows no fences
inline constexpr auto publish_in_a_row = std::memory_order_seq_cst;
inline void publication_fence() {}
#else
inline constexpr auto publish_in_a_row = std::memory_order_release;
inline void publication_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(Cell* cells, uint32_t count, const std::atomic<uint32_t>* reader_head);
  // True if push may be called.
  bool has_credit();
  // True if the reader's head was out of range.
  bool broken() const { return broken_; }
  // Prefetches the cell of the next push.
  void prefetch() const { __builtin_prefetch(&cells_[tail_ & (count_ - 1)], 1); }
  void push(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);

 private:
  Cell* cells_ = nullptr;
  const std::atomic<uint32_t>* reader_head_ = nullptr;
  uint32_t count_ = 0;
  uint32_t tail_ = 0;  // cells written so far; wraps
  uint32_t head_ = 0;  // of the reader, as last read
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const Cell* cells, uint32_t count, std::atomic<uint32_t>* head) : cells_(cells), head_out_(head), count_(count) {}
  bool ready() const {
    return static_cast<uint32_t>(cells_[head_ & (count_ - 1)].words[0].load(std::memory_order_seq_cst)) == head_ + 1;
  }
  // Copies the next cell, because the peer may change its memory at any time. False if there is none. The writer learns the
  // reader's head once per quarter of the ring; so when everything is taken, it knows of at least three quarters.
  bool pop(Entry& entry);
  // Compares the next cell with a whole frame. Sets `ref` to its payload if it is the expected one.
  Next compare(const FrameHeader& expected, uint32_t& ref) const;
  void advance() {
    ++head_;
    if ((head_ & (count_ / 4 - 1)) == 0) head_out_->store(head_, std::memory_order_release);
  }

 private:
  const Cell* cells_ = nullptr;
  std::atomic<uint32_t>* head_out_ = nullptr;
  uint32_t count_ = 0;
  uint32_t head_ = 0;
};

// An entry is the ref of a slot that the receiver has released, with the number of the lap in the byte above.
class ReleaseWriter {
 public:
  ReleaseWriter() = default;
  ReleaseWriter(std::atomic<uint32_t>* entries, uint32_t count) : entries_(entries), count_(count) {}
  void push(uint32_t ref, std::memory_order order = std::memory_order_seq_cst);

 private:
  std::atomic<uint32_t>* entries_ = nullptr;
  uint32_t count_ = 0;
  uint32_t tail_ = 0;
};

class ReleaseReader {
 public:
  ReleaseReader() = default;
  ReleaseReader(const std::atomic<uint32_t>* entries, uint32_t count) : entries_(entries), count_(count) {}
  bool ready() const;
  bool pop(uint32_t& ref);

 private:
  const std::atomic<uint32_t>* entries_ = nullptr;
  uint32_t count_ = 0;
  uint32_t head_ = 0;
};

}  // namespace unisono::shm

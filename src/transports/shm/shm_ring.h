// The two rings of a link, each with one writer and one reader: frames one way, slots given back the other way.
//
// Both publish by a number inside the entry itself (sequence, lap), so the reader touches one cache line per entry and no
// shared index. The frame ring can be full: its writer looks at the reader's head, which lies in the reader's arena, only when
// its last known value says so. The release ring cannot: what is given back was held, and that is bounded by quota.
// Publishing is a seq_cst store, because the writer then looks whether the reader sleeps (shm_transport.cc, wake). Who
// publishes to several readers in a row uses release stores, and one fence for all: each seq_cst store waits until its line has
// come from the other core.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/shm_arena.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono::shm {

// What a cell carries. A payload larger than a slot goes as one `first` and several `next`, each of piece_bytes but the
// last; a link has at most one such frame under way in each direction. `abort` ends it early.
enum class CellType : uint8_t { whole = 0, first = 1, next = 2, abort = 3 };

struct Entry {
  FrameHeader header;  // magic filled in, header_checksum zero
  CellType type = CellType::whole;
  uint32_t ref = 0;  // of the payload
};

// How several publications in a row are stored, and what comes between the last and the looks whether their readers sleep.
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
  // The reader's head was nonsense.
  bool broken() const { return broken_; }
  // The next push writes there.
  void prefetch() const { __builtin_prefetch(&cells_[tail_ & (count_ - 1)], 1); }
  void push(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);

 private:
  Cell* cells_ = nullptr;
  const std::atomic<uint32_t>* reader_head_ = nullptr;
  uint32_t count_ = 0;
  uint32_t tail_ = 0;  // cells written so far; wraps
  uint32_t head_ = 0;  // of the reader, as last seen
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const Cell* cells, uint32_t count, std::atomic<uint32_t>* head) : cells_(cells), head_out_(head), count_(count) {}
  bool ready() const {
    return static_cast<uint32_t>(cells_[head_ & (count_ - 1)].words[0].load(std::memory_order_seq_cst)) == head_ + 1;
  }
  // Copies the next cell out (its memory is the peer's and may change at any time). False if there is none. The writer is told
  // once per quarter of the ring: when everything is taken, it knows of three quarters at least.
  bool pop(Entry& entry);
  // How the next cell compares with a whole frame; its payload's place if it is that one.
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

// An entry is the ref of a slot that the reader of frames has done with, below the number of the lap.
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

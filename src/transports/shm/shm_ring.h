// The two rings of a link. One ring carries frames. The other carries released slots, in the opposite direction. Each ring has
// one writer and one reader.
//
// Each entry contains a number that publishes it: a sequence number or a lap number (counts the rounds through the ring).
// Therefore a reader touches one cache line per entry, and no shared index. The frame ring can be full. Its writer remembers
// the reader's head, and reads it again (in the reader's arena) only when the ring looks full. The release ring cannot be full,
// because only a limited number of slots can be held.
//
// An entry is published by a seq_cst store, because after it the writer checks whether the reader sleeps (see Bell in
// shm_host.h). To publish to several readers, a writer uses release stores and one fence. With seq_cst stores, each store would
// wait until its cache line has come from the other core.
#pragma once

#include <atomic>
#include <cstdint>

#include "transports/shm/shm_arena.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono::shm {

// What a cell contains:
// - whole: a frame whose payload (if any) is in one slot
// - first, next: one piece of a larger payload; each piece but the last has piece_bytes
// - abort: tells the receiver that a frame in pieces ends early
// A link has at most one unfinished frame in pieces in each direction.
enum class CellType : uint8_t { whole = 0, first = 1, next = 2, abort = 3 };

struct Entry {
  FrameHeader header;  // the magic is filled in; header_checksum is 0
  CellType type = CellType::whole;
  uint32_t ref = 0;  // slot reference of the payload
};

// The memory order to use when several entries are published in a row. Call the fence after the last entry, then wake the
// readers.
#if defined(__SANITIZE_THREAD__)  // the thread sanitizer does not support fences
inline constexpr auto batched_publish_order = std::memory_order_seq_cst;
inline void publication_fence() {}
#else
inline constexpr auto batched_publish_order = std::memory_order_release;
inline void publication_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

class RingWriter {
 public:
  RingWriter() = default;
  RingWriter(Cell* cells, uint32_t count, const std::atomic<uint32_t>* reader_head);
  // Returns true if there is space for a push.
  bool has_credit();
  // Returns true if the reader's head was ever out of range.
  bool broken() const { return broken_; }
  // Prefetches the cell that the next push writes.
  void prefetch() const { __builtin_prefetch(&cells_[tail_ & (count_ - 1)], 1); }
  void push(const FrameHeader& header, CellType type, uint32_t ref, std::memory_order order = std::memory_order_seq_cst);

 private:
  Cell* cells_ = nullptr;
  const std::atomic<uint32_t>* reader_head_ = nullptr;
  uint32_t count_ = 0;
  uint32_t tail_ = 0;  // number of cells written so far; it wraps
  uint32_t head_ = 0;  // the value that the reader's head had when the writer last read it
  bool broken_ = false;
};

class RingReader {
 public:
  RingReader() = default;
  RingReader(const Cell* cells, uint32_t count, std::atomic<uint32_t>* head) : cells_(cells), head_out_(head), count_(count) {}
  bool ready() const {
    return static_cast<uint32_t>(cells_[head_ & (count_ - 1)].words[0].load(std::memory_order_seq_cst)) == head_ + 1;
  }
  // Takes the next cell. The cell is copied, because the peer may change its memory at any time. Returns false if there is no
  // cell. The reader publishes its head only once per quarter of the ring. Therefore, when the reader has taken all cells, the
  // writer sees at least three quarters of the ring as free.
  bool pop(Entry& entry);
  // Compares the next cell with the expected frame, which must not be in pieces. If they agree, sets `ref` to the slot of the
  // payload.
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

// Writes the ring of released slots. An entry consists of the ref of a slot that the receiver has released and, in the top 8
// bits, the lap number.
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

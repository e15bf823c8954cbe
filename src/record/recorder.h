// Writes the record of one group. Recording is cheap enough to be always on. A fast-path operation costs a handful of stores to
// memory, and most of these stores happen while the operation waits for other ranks. Any other operation costs a few dozen
// stores. After make(), a recorder takes no locks, makes no system calls and allocates nothing.
//
// Only one thread writes at a time; it holds the runtime's mutex. Other processes may read at any moment. They look at
// Totals::sequence to see whether Live and the counters changed while they read. Every counter is one word. An entry of the
// ring is valid once Totals::ended has counted it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "record/area.h"
#include "record/layout.h"
#include "unisono/event.h"
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono::record {

struct LinkName {
  std::string transport;  // "shm", "tcp", "self"
  std::string place;      // for example "host b, pid 42"
};

struct Identity {
  uint64_t run = 0;
  uint32_t group = 0;
  uint32_t epoch = 0;
  Rank rank = 0;
  std::string host = {};
  int32_t pid = 0;
  uint64_t process_started = 0;
  Nanos wall_start = 0;
  Nanos monotonic_start = 0;
  std::vector<LinkName> links = {};  // one per rank, in rank order
};

struct Placement {
  uint64_t operations = 256;  // The ring keeps this many operations. The number is rounded up to a power of two.
  std::string folder = {};    // The record is a file in this folder. If the name is empty, the record is in memory.
};

// The bytes that one operation has sent to one rank and received from this rank.
struct Moved {
  Rank rank = 0;
  uint64_t sent_bytes = 0, sent_messages = 0, received_bytes = 0, received_messages = 0;  // the bytes include headers
};

class Recorder {
 public:
  // Succeeds even if other processes cannot read the record; then status() and Header::note give the reason. Fails with
  // Code::unavailable only if there is no memory at all.
  static Result<std::unique_ptr<Recorder>> make(const Identity& identity, const Placement& placement);
  Recorder(const Recorder&) = delete;

  // Begins a fast-path operation. No other operation may be running. The next call must be fast_path_ended() or show().
  void fast_path_begun(uint64_t number, uint64_t bytes, Kind kind, Nanos started) {
    if (ended_ - counted_ >= uncounted_max) count_all();
    auto& entry = *next_;
    entry.number = number;
    entry.bytes = bytes;
    entry.started = entry.first_send = started;
    entry.kind = kind;
    store(totals_->begun, ended_ + 1);
  }
  // Ends the fast-path operation. `last` is the rank whose message arrived last.
  void fast_path_ended(Rank last, Nanos ended) {
    auto& entry = *next_;
    entry.last_receive = entry.ended = ended;
    std::memcpy(&entry.code, &fast_path_outcome, sizeof(fast_path_outcome));
    entry.pending = static_cast<int32_t>(last);
    publish();
  }

  // begun(), show() and ended() record all operations that are not fast-path operations. show() replaces what the record shows
  // about this operation. If the record already shows running_max other operations, show() has no effect. A fast-path operation
  // that takes too long continues with show() and ended(); begun() is not called for it.
  void begun() { store(totals_->begun, totals_->begun + 1); }
  void show(const RunningEntry& shown);
  // `waited` is the time from the start of the operation to the first message of the rank entry.pending. If entry.pending is
  // -1, `waited` is ignored.
  void ended(const Entry& entry, Nanos waited, std::span<const Moved> moved);
  void stalled(Rank rank) { add(link(rank).stalls, 1); }
  void lost(Rank rank, Nanos now) { store(link(rank).lost_at, now); }
  void left(Code why, Nanos now);
  void event(EventKind kind, int32_t rank, const std::string& text, Nanos now);

  const Status& status() const { return status_; }
  ByteView bytes() const { return {area_.data(), area_.bytes()}; }

 private:
  // the bytes of Entry::code, Entry::numbering and Entry::reserved: Code::ok and Numbering::by_order are both 0
  static constexpr uint32_t fast_path_outcome = 0;
  Recorder(Area area, Status status, uint32_t world, uint64_t capacity);

  // A reader that sees a store made after this call also sees all stores made before the call.
  static void order_stores() {
#if defined(__SANITIZE_THREAD__)
    std::atomic_signal_fence(std::memory_order_release);  // the thread sanitizer does not support thread fences
#else
    std::atomic_thread_fence(std::memory_order_release);
#endif
  }
  template <typename T>
  static void store(T& word, T value) {
    std::atomic_ref(word).store(value, std::memory_order_relaxed);
  }
  static void add(uint64_t& word, uint64_t amount) { store(word, word + amount); }
  Link& link(Rank rank) { return links_[rank]; }
  void publish() {
    std::atomic_ref(totals_->ended).store(++ended_, std::memory_order_release);
    order_stores();  // readers must see the new value of `ended` before the next entry overwrites the oldest entry
    next_ = ring_ + (ended_ & ring_mask_);
    __builtin_prefetch(next_, 1);
  }
  // Runs `change`. The sequence number is odd while it runs.
  template <typename F>
  void change(F&& change);
  void count_all();
  void count_uncounted();
  void count(const Entry& entry, Nanos waited);
  uint32_t find(uint64_t number, uint8_t numbering, const Kind& kind) const;

  Area area_;
  Status status_;
  Totals* totals_;
  Live* live_;
  Events* events_;
  Collective* collectives_;
  Link* links_;
  Entry* ring_;
  uint64_t ring_mask_;
  uint32_t world_;
  Entry* next_;                       // the entry of the ring that is written next
  uint64_t ended_ = 0, counted_ = 0;  // copies of totals_->ended and totals_->counted
};

}  // namespace unisono::record

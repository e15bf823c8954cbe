// Writes the record of one group. It is cheap enough to be always on: a fast-path operation costs a handful of stores, most of
// them made while it waits for the others anyway; any other operation costs a few dozen. After it was made it takes no locks,
// makes no system calls and allocates nothing.
//
// One thread at a time writes (the runtime's mutex sees to that). Readers are other processes that look at any moment: Live has
// a sequence number, a ring entry counts once Totals::ended says so, and every counter is one word.
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
#include "unisono/status.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono::record {

struct LinkName {
  std::string transport;  // "shm", "tcp", "self"
  std::string place;      // "host b, pid 42"
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
  std::vector<LinkName> links = {};  // by rank
};

struct Placement {
  uint64_t operations = 256;  // kept in the ring; rounded up to a power of two
  std::string folder = {};    // empty: memory
};

// The traffic of one operation to and from one rank.
struct Moved {
  Rank rank = 0;
  uint64_t sent_bytes = 0, sent_messages = 0, received_bytes = 0, received_messages = 0;  // headers included
};

class Recorder {
 public:
  // Always gives one: if there is neither file nor memory to be seen by others, status() says why, and so does the header's
  // note. Only if there is no memory at all: unavailable.
  static Result<std::unique_ptr<Recorder>> make(const Identity& identity, const Placement& placement);
  Recorder(const Recorder&) = delete;

  // Begins a fast-path operation. No operation may be in flight, and the next call must be fast_path_ended or show.
  void fast_path_begun(uint64_t number, uint64_t bytes, Kind kind, Nanos started) {
    if (ended_ - counted_ >= uncounted_max) count_all();
    auto& entry = *next_;
    entry.number = number;
    entry.bytes = bytes;
    entry.started = entry.first_send = started;
    entry.kind = kind;
    store(totals_->begun, ended_ + 1);
  }
  // It is done; `last` came last.
  void fast_path_ended(Rank last, Nanos ended) {
    auto& entry = *next_;
    entry.last_receive = entry.ended = ended;
    std::memcpy(&entry.code, &fast_path_outcome, sizeof(fast_path_outcome));
    entry.pending = static_cast<int32_t>(last);
    publish();
  }

  // These calls serve all other operations. They also serve a fast-path operation that takes longer after all; it skips
  // begun(). show() replaces the operation's earlier state; beyond shown_max operations in flight it does nothing.
  void begun() { store(totals_->begun, totals_->begun + 1); }
  void show(const Shown& shown);
  // `waited`: from its start to the first message of the rank that it awaited; counted if there is one.
  void ended(const Entry& entry, Nanos waited, std::span<const Moved> moved);
  void stalled(Rank rank) { add(link(rank).stalls, 1); }
  void lost(Rank rank, Nanos now) { store(link(rank).lost_at, now); }
  void left(Code why, Nanos now);

  const Status& status() const { return status_; }
  ByteView bytes() const { return {area_.data(), area_.bytes()}; }

 private:
  static constexpr uint32_t fast_path_outcome = 0;  // code ok, numbered by order
  Recorder(Area area, Status status, uint32_t world, uint64_t capacity);

  // Readers see earlier stores before later ones.
  static void order_stores() {
#if defined(__SANITIZE_THREAD__)
    std::atomic_signal_fence(std::memory_order_release);  // the thread sanitizer knows no fences between processors
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
    order_stores();  // before the next entry overwrites the oldest
    next_ = ring_ + (ended_ & ring_mask_);
    __builtin_prefetch(next_, 1);
  }
  // Between two values of the sequence.
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
  Collective* collectives_;
  Link* links_;
  Entry* ring_;
  uint64_t ring_mask_;
  uint32_t world_;
  Entry* next_;                       // of the ring
  uint64_t ended_ = 0, counted_ = 0;  // as in totals_
};

}  // namespace unisono::record

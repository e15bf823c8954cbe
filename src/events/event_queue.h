// The events of one process in one group or in one elastic run. State machines add events while locks are held. A thread that
// holds no lock delivers them later to the user's handler and to the log.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "unisono/event.h"

namespace unisono {

class EventLog;

class EventQueue {
 public:
  static constexpr size_t waiting_max = 256;  // Events that are added while this many wait are dropped, and counted.

  // `log` may be null: then there is no log. If `handler` is empty, only the log gets the events.
  EventQueue(EventHandler handler, EventLog* log) : handler_(std::move(handler)), log_(log) {}
  EventQueue(const EventQueue&) = delete;

  // The source of later events, for example "rank 1 of 4 on host a, pid 42". It changes when the group re-forms.
  void set_source(std::string source) UNISONO_EXCLUDES(mutex_);
  // Adds an event, completed with its source and the present time. Never blocks, and calls nobody. Returns the complete event.
  Event add(EventKind kind, int32_t rank, std::string text) UNISONO_EXCLUDES(mutex_);
  // Returns true if events wait. Reads one word, so a thread that drives may call it in every turn.
  bool is_waiting() const { return waiting_count_.load(std::memory_order_relaxed) > 0; }
  // Calls the handler and the log for all waiting events. The caller must hold no lock that a handler could need. If another
  // thread is delivering, or if the handler itself calls this, it returns at once: that thread delivers these events, too.
  void deliver() UNISONO_EXCLUDES(mutex_);

 private:
  void deliver_one(const Event& event) const noexcept;

  const EventHandler handler_;
  EventLog* const log_;
  Mutex mutex_;
  std::vector<Event> waiting_ UNISONO_GUARDED_BY(mutex_);
  std::string source_ UNISONO_GUARDED_BY(mutex_);
  uint64_t dropped_ UNISONO_GUARDED_BY(mutex_) = 0;
  bool delivering_ UNISONO_GUARDED_BY(mutex_) = false;
  std::atomic<size_t> waiting_count_{0};
};

}  // namespace unisono

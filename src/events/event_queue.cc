#include "events/event_queue.h"

#include <utility>

#include "base/concat.h"
#include "events/event_log.h"

namespace unisono {

void EventQueue::set_source(std::string source) {
  MutexLock lock(mutex_);
  source_ = std::move(source);
}

Event EventQueue::add(EventKind kind, int32_t rank, std::string text) {
  MutexLock lock(mutex_);
  Event event{.kind = kind, .text = std::move(text), .source = source_, .rank = rank, .time = std::chrono::system_clock::now()};
  if (waiting_.size() >= waiting_max) {
    ++dropped_;
    return event;
  }
  if (dropped_ > 0) event.text += concat(" (", std::exchange(dropped_, 0), " events before this one were dropped)");
  waiting_.push_back(event);
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
  return event;
}

void EventQueue::deliver() {
  std::vector<Event> taken;
  MutexLock lock(mutex_);
  if (delivering_) return;
  delivering_ = true;
  while (!waiting_.empty()) {
    taken.swap(waiting_);
    waiting_count_.store(0, std::memory_order_relaxed);
    {
      MutexUnlock unlocked(mutex_);
      for (const auto& event : taken) deliver_one(event);
      taken.clear();
    }
  }
  delivering_ = false;
}

void EventQueue::deliver_one(const Event& event) const noexcept {
  try {
    if (log_ != nullptr) log_->write(event, handler_ != nullptr);
  } catch (...) {  // There is no memory for the line. The handler still gets the event.
  }
  try {
    if (handler_) handler_(event);
  } catch (...) {  // The handler's exceptions must not end the thread that moves the group's data.
  }
}

}  // namespace unisono

// The log: decides which events become lines, and writes them. Its lines never contain a line feed or a control character, even
// where a text came from another process.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/mutex.h"
#include "forks/fork.h"
#include "unisono/event.h"
#include "unisono/status.h"

namespace unisono {

// The value of UNISONO_LOG.
struct LogTarget {
  EventLevel least = EventLevel::warning;  // events below this level are left out
  std::string path{};                      // empty: standard error
  bool chosen = false;                     // false: the variable is not set, so an event that has a handler is not logged
  friend bool operator==(const LogTarget&, const LogTarget&) = default;
};

// Accepts "", "warning", "info" and a path with a slash. Returns invalid for any other text, because it may be a misspelt word.
Result<LogTarget> parse_log_target(std::string_view text);

class EventLog {
 public:
  static constexpr Nanos period = 60 * second;  // Each kind gets at most one line in this time.
  using Clock = Nanos (*)();
  // Writes one line, which ends with a line feed. It must not throw.
  using Writer = std::function<void(std::string_view line)>;

  EventLog(LogTarget target, Clock clock, Writer writer)
      : target_(std::move(target)), clock_(clock), writer_(std::move(writer)) {}
  EventLog(const EventLog&) = delete;

  // `handled`: the user's handler gets the event, too.
  void write(const Event& event, bool handled) UNISONO_EXCLUDES(mutex_);

 private:
  struct Kind {
    Nanos written = 0;
    uint64_t left_out = 0;
    bool known = false;
  };

  const LogTarget target_;
  const Clock clock_;
  const Writer writer_;
  Mutex& mutex_ = fork_mutex();  // a child made by fork() writes to the same log
  std::array<Kind, event_kind_count> kinds_ UNISONO_GUARDED_BY(mutex_){};
};

}  // namespace unisono

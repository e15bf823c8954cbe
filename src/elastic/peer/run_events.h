// Finds out what has happened in an elastic run since the last look, and adds it to the run's events: peers that came, left or
// were lost, and connections or messages that were refused.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/clock.h"
#include "events/event_queue.h"
#include "unisono/elastic.h"

namespace unisono {

class RunEvents {
 public:
  static constexpr Nanos period = second;  // A look takes time for each peer, so there is at most one in this time.

  RunEvents(EventQueue& events, std::string run_id) : events_(events), run_id_(std::move(run_id)) {}

  bool is_due(Nanos now) const { return now >= next_look_; }
  // Call it when this process has joined the run, and from then on when is_due() returns true. The first look reports the
  // joining alone.
  void look(const ElasticStatus& status, Nanos now);

 private:
  void compare(const std::string& peer, const std::string& before, const std::string& after);

  EventQueue& events_;
  const std::string run_id_;
  std::map<std::string, std::string> known_;  // status by name and address
  uint64_t refused_ = 0;
  bool joined_ = false;
  Nanos next_look_ = 0;
};

}  // namespace unisono

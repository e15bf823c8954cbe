// A trace says when the peers of an elastic run join and leave. This file defines its text format, and a generator of traces
// that resemble preemptible machines. Benches replay traces with real processes.
//
//   # seconds peer what
//   0 0 join
//   20 3 kill          kill: ends without a message; leave: says goodbye; stop: does nothing until `continue`
//
// A trace must be consistent: its times do not decrease, a peer joins only while it is away, and all other events are about
// peers that have joined and not left.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::sim {

enum class ChurnAction : uint8_t { join, leave, kill, stop, resume };
const char* name(ChurnAction action);  // returns the word for it in the text format; the word for resume is "continue"

struct ChurnEvent {
  Nanos at = 0;
  uint32_t peer = 0;
  ChurnAction action = ChurnAction::join;
  friend bool operator==(const ChurnEvent&, const ChurnEvent&) = default;
};

inline constexpr uint32_t churn_peers_max = 4096;
inline constexpr size_t churn_events_max = 1'000'000;

struct ChurnTrace {
  std::vector<ChurnEvent> events;

  // Fails with Code::invalid. The message contains the line number and one of these words: bad_line, bad_time, bad_peer,
  // bad_action, out_of_order, already_there, not_there, stopped, not_stopped, too_long.
  static Result<ChurnTrace> parse(std::string_view text);
  // Returns a text that parse() can read. Times are exact to the microsecond.
  std::string to_text() const;
  friend bool operator==(const ChurnTrace&, const ChurnTrace&) = default;
};

struct ChurnPlan {
  enum class Law : uint8_t { regular, poisson };  // the times between events are all equal, or have an exponential distribution
  uint32_t peers = 8;                             // number of peers; they are numbered from 0, and all of them join at time 0
  uint32_t peers_min = 4;                         // at any time, at least this many peers have joined and are not stopped
  Nanos period = 20 * second;                     // mean time between two events
  Nanos duration = 600 * second;                  // all events of the trace happen before this time
  Law law = Law::regular;
  double kill_share = 0.5;  // fraction of departures that are kills; departures that are neither kills nor stops are leaves
  double stop_share = 0;    // fraction of departures that are stops; a peer that is stopped continues later
  uint64_t seed = 1;
  // Fails with Code::invalid. The message contains the word bad_option and the name of the field.
  Status check() const;
};
// Draws a random trace. First, all peers join at time 0. Each later event is a departure or a return, each with probability
// 1/2. But if no peer is away, it is a departure, and if only peers_min peers are at work, it is a return. The same plan always
// gives the same trace. Fails like ChurnPlan::check().
Result<ChurnTrace> make_churn(const ChurnPlan& plan);

}  // namespace unisono::sim

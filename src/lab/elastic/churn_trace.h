// Which peers of an elastic run come and go, and when: a text that benches replay with real processes, and a generator of such
// as machines that can be taken away at any time make.
//
//   # seconds peer what
//   0 0 join
//   20 3 kill          kill: gone without a word; leave: says goodbye; stop: does nothing until it continues
//
// A trace is consistent: times do not fall, and a peer joins only while it is away, and does all else only while it is there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "unisono/status.h"

namespace unisono::sim {

enum class ChurnAction : uint8_t { join, leave, kill, stop, go_on };
const char* name(ChurnAction action);  // "continue" of go_on

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

  // invalid: the line and what is wrong with it, by name: bad_line, bad_time, bad_peer, bad_action, out_of_order,
  // already_there, not_there, stopped, not_stopped, too_long.
  static Result<ChurnTrace> parse(std::string_view text);
  // The text that parse() reads, with times to the microsecond.
  std::string to_text() const;
  friend bool operator==(const ChurnTrace&, const ChurnTrace&) = default;
};

struct ChurnPlan {
  enum class Law : uint8_t { regular, poisson };  // of the times between two events: all alike, or independent of each other
  uint32_t peers = 8;                             // numbers 0 … peers - 1; all join at 0
  uint32_t peers_min = 4;                         // at work at any time, at least
  Nanos period = 20 * second;                     // between two events, on average
  Nanos duration = 600 * second;                  // no event then or later
  Law law = Law::regular;
  double kill_share = 0.5;  // of those that go: without a word. The others leave
  double stop_share = 0;    // of those that go: do nothing until they come back
  uint64_t seed = 1;
  // invalid (bad_option): names the field.
  Status check() const;
};
// One goes where all are at work, one comes where peers_min are; else it is a toss. The same plan gives the same trace.
// invalid: as check().
Result<ChurnTrace> make_churn(const ChurnPlan& plan);

}  // namespace unisono::sim

// Events are what the library reports that no call returns. See docs/guides/troubleshooting.md.
//
// Every event goes to three places:
// - Options::on_event or ElasticOptions::on_event, if it is set.
// - The log. UNISONO_LOG=warning writes warnings to standard error, and UNISONO_LOG=info writes all events there. Any other
//   value must contain a slash: it is the path of a file, to which all events are appended. Without the variable, warnings go
//   to standard error, but only if there is no on_event. The log has at most one line per kind and minute.
// - The records of the groups, which keep the last events. `unisono top` and `unisono explain` show them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "unisono/export.h"

namespace unisono {

enum class EventLevel : uint8_t { info = 0, warning = 1 };

// The numbers are part of the record's format, so they never change.
enum class EventKind : uint8_t {
  joined = 0,
  reformed = 1,
  link_lost = 2,
  record_unavailable = 3,
  log_unavailable = 4,
  peer_joined = 5,
  peer_left = 6,
  peer_lost = 7,
  refused = 8,
  smaller_datagrams = 9,
  larger_datagrams = 10,
  reconnected = 11,
  unprotected = 12,
};

struct EventFacts {
  EventKind kind;
  std::string_view name;  // a short name that stays the same, for programs
  EventLevel level;
  std::string_view meaning;
};

// All kinds of events. The index of an entry is the number of its kind.
inline constexpr EventFacts event_table[] = {
    {EventKind::joined, "joined", EventLevel::info, "this process has joined a group or an elastic run"},
    {EventKind::reformed, "reformed", EventLevel::info, "the group has re-formed, with fewer or with other members"},
    {EventKind::link_lost, "link_lost", EventLevel::info, "a member has left, or the link to it is lost"},
    {EventKind::record_unavailable, "record_unavailable", EventLevel::warning,
     "a group has no record where it should have one"},
    {EventKind::log_unavailable, "log_unavailable", EventLevel::warning, "the file that UNISONO_LOG names cannot be written"},
    {EventKind::peer_joined, "peer_joined", EventLevel::info, "a peer has joined the elastic run"},
    {EventKind::peer_left, "peer_left", EventLevel::info, "a peer has left the elastic run"},
    {EventKind::peer_lost, "peer_lost", EventLevel::info, "a peer of the elastic run does not answer any more"},
    {EventKind::refused, "refused", EventLevel::warning, "connections or messages of strangers, or damaged ones, were refused"},
    {EventKind::smaller_datagrams, "smaller_datagrams", EventLevel::warning,
     "a path carries only smaller datagrams than before"},
    {EventKind::larger_datagrams, "larger_datagrams", EventLevel::info, "a path carries larger datagrams again"},
    {EventKind::reconnected, "reconnected", EventLevel::info,
     "a link's connection was lost, and is made anew; nothing is lost"},
    {EventKind::unprotected, "unprotected", EventLevel::warning,
     "a group or an elastic run has no key, and processes of other hosts can reach it"},
};
inline constexpr size_t event_kind_count = sizeof(event_table) / sizeof(event_table[0]);

constexpr const EventFacts& facts(EventKind kind) { return event_table[static_cast<size_t>(kind)]; }

struct Event {
  EventKind kind = EventKind::joined;
  std::string text{};    // what happened, to which rank on which host, and what to do
  std::string source{};  // the process that reports it, for example "rank 1 of 4 on host a, pid 42"
  int32_t rank = -1;     // the rank that the event is about; -1: it is about no single rank
  std::chrono::system_clock::time_point time{};

  EventLevel level() const { return facts(kind).level; }
  // Returns one line for logs: "unisono: warning: TEXT (record_unavailable; rank 1 of 4 on host a, pid 42)".
  UNISONO_EXPORT std::string to_string() const;
};

// A library thread, or a thread that is inside a call of the library, calls it. It should return soon, because that thread may
// be the one that moves the group's data. For the same reason, it must not make calls that wait for other processes. It may
// make calls that return at once, such as Group::counters() and Elastic::status(). Exceptions that leave it are dropped. Calls
// for the events of one process in one group, or in one elastic run, never overlap.
using EventHandler = std::function<void(const Event&)>;

}  // namespace unisono

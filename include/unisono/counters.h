// Counters of a group on this rank. They start when the group is joined, split or re-formed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unisono {

// Traffic with one rank.
struct LinkCounters {
  uint32_t rank = 0;
  std::string transport;    // "shm", "tcp"; "self" for this rank
  std::string place;        // "host b, pid 42"
  uint64_t sent_bytes = 0;  // on the wire or in shared memory, headers included; only ended operations count
  uint64_t sent_messages = 0;
  uint64_t received_bytes = 0;  // as sent_bytes
  uint64_t received_messages = 0;
  int64_t waited_us = 0;    // time from an operation's start to this rank's first message, if it came last of all ranks
  uint64_t waited_for = 0;  // operations in which it came last
  uint64_t stalls = 0;      // messages that had to wait because the transport had no capacity
  bool lost = false;        // the link is gone
};

struct CollectiveCounters {
  std::string_view collective;  // "all_reduce"; static text
  uint64_t operations = 0;      // ended operations, whatever their outcome
  uint64_t bytes = 0;           // of the larger of this rank's two buffers
  int64_t total_us = 0;         // from start to end
  uint64_t late = 0;
  uint64_t failed = 0;  // operations that did not end with ok, including late ones
};

struct Counters {
  uint64_t begun = 0, ended = 0;                // operations; the difference is in flight
  std::vector<CollectiveCounters> collectives;  // collectives that were called
  std::vector<LinkCounters> links;              // by rank, this one included
  std::string note;                             // why the record is not at the requested path; empty: it is
};

}  // namespace unisono

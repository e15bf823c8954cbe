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
  uint64_t sent_bytes = 0;  // on the wire or in shared memory, including headers; ended operations only
  uint64_t sent_messages = 0;
  uint64_t received_bytes = 0;  // as defined for sent_bytes
  uint64_t received_messages = 0;
  // Microseconds from the operation's start to the first message of `rank`, summed over the operations in `waited_for`.
  int64_t waited_us = 0;
  uint64_t waited_for = 0;  // operations in which the first message of `rank` came last
  uint64_t stalls = 0;      // messages that had to wait because the transport had no capacity
  bool lost = false;        // the link to `rank` is closed
};

struct CollectiveCounters {
  std::string_view collective;  // for example "all_reduce"; static text
  uint64_t operations = 0;      // ended operations, whatever their outcome
  uint64_t bytes = 0;           // max(input size, output size), summed over operations
  int64_t total_us = 0;         // sum over operations: time from start to end
  uint64_t late = 0;
  uint64_t failed = 0;  // operations that did not end with ok, including late ones
};

struct Counters {
  uint64_t begun = 0, ended = 0;                // number of operations; begun - ended are in flight
  std::vector<CollectiveCounters> collectives;  // only the collectives that were called
  std::vector<LinkCounters> links;              // indexed by rank, including this rank
  std::string note;                             // why the record is not at the requested path; empty if it is
};

}  // namespace unisono

// What a group has done so far on this rank: since it was joined, split off or re-formed last.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace unisono {

// To and from one rank.
struct LinkCounters {
  uint32_t rank = 0;
  std::string transport;    // "shm", "tcp"; "self" for this rank
  std::string place;        // "host b, pid 42"
  uint64_t sent_bytes = 0;  // on the wire or in shared memory, headers included; of operations that have ended
  uint64_t sent_messages = 0;
  uint64_t received_bytes = 0;  // likewise
  uint64_t received_messages = 0;
  int64_t waited_us = 0;    // start of an operation to this rank's first message, where that came last of all
  uint64_t waited_for = 0;  // how many operations that was so
  uint64_t stalls = 0;      // how often a message found no room in the transport and had to wait
  bool lost = false;        // the link is gone
};

struct CollectiveCounters {
  std::string_view collective;  // "all_reduce"; static text
  uint64_t operations = 0;      // that have ended, whatever the outcome
  uint64_t bytes = 0;           // of the larger of this rank's two buffers
  int64_t total_us = 0;         // from start to end
  uint64_t late = 0;
  uint64_t failed = 0;  // all that did not end with ok, late ones included
};

struct Counters {
  uint64_t begun = 0, ended = 0;                // operations; the difference is in flight
  std::vector<CollectiveCounters> collectives;  // those that were called
  std::vector<LinkCounters> links;              // by rank, this one included
  std::string note;                             // why the record is not where it was asked to be; empty: it is
};

}  // namespace unisono

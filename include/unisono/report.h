// What happened in one operation: who contributed, what it cost, who was waited for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "unisono/export.h"

namespace unisono {

struct Report {
  std::string_view operation = "none";  // "all_reduce"; static text, as the schedule's name
  uint64_t number = 0;                  // of the operation in its group: by order of calls, CallOptions::id, or of messages with this tag
  std::string_view schedule = "none";   // "two_step", "ring", … or "none" where nothing moved
  uint32_t world_size = 0;       // members of the group
  uint32_t contributors = 0;     // ranks whose data is in the result; world_size unless the result is partial
  uint64_t sent_bytes = 0;       // on the wire or in shared memory, headers included
  uint64_t received_bytes = 0;   // likewise
  uint64_t sent_messages = 0;
  uint64_t received_messages = 0;
  int64_t total_us = 0;          // start to finish
  int64_t wait_us = 0;           // start to the first message of the last rank to send one: time lost to late ranks
  int64_t compute_us = 0;        // sums, conversions, and copies in and out of shared memory
  int64_t transfer_us = 0;       // the rest
  int32_t last_rank = -1;        // the rank whose first message came last; -1 if none was awaited

  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono

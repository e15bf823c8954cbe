// Error text about a rank that sends nothing any more.
#pragma once

#include <string>

#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// why: its code is unavailable if that rank ended the group; anything else means that its link is gone.
inline bool gave_up(const Status& why) { return why.code() == Code::unavailable; }

inline std::string describe_absence(Rank rank, const Status& why) {
  return "rank " + std::to_string(rank) + (gave_up(why) ? " gave up: " : " was lost: ") + why.message();
}

}  // namespace unisono

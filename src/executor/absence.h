// What people read of a rank that nothing comes from any more.
#pragma once

#include <string>

#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// why: unavailable if the rank has ended the group there, anything else if its link is gone.
inline bool gave_up(const Status& why) { return why.code() == Code::unavailable; }

inline std::string describe_absence(Rank rank, const Status& why) {
  return "rank " + std::to_string(rank) + (gave_up(why) ? " gave up: " : " was lost: ") + why.message();
}

}  // namespace unisono

// Helps to write errors about a rank that no longer sends.
#pragma once

#include <string>

#include "base/concat.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

// Returns true if the rank has ended the group (code unavailable). With any other code, the link to the rank is gone.
inline bool is_abort(const Status& why) { return why.code() == Code::unavailable; }

inline std::string describe_absence(Rank rank, const Status& why) {
  return concat("rank ", rank, is_abort(why) ? " aborted the operation: " : " was lost: ", why.message());
}

}  // namespace unisono

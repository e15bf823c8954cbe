// Gives a record to a group if records are enabled.
#pragma once

#include "group/lifecycle/guarded_state.h"

namespace unisono {

// Call it when all members of the group are in the roster. If the record cannot be made, the group works without one.
void keep_record(GuardedState& guarded, GroupCore& group);

}  // namespace unisono

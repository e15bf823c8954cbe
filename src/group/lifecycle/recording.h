// Gives a group its record, if records are kept.
#pragma once

#include "group/lifecycle/guarded_state.h"

namespace unisono {

// When all its members are in the roster. A group whose record cannot be made works without.
void keep_record(const GuardedState& guarded, GroupCore& group);

}  // namespace unisono

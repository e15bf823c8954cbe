// Gives a group its record, if records are kept.
#pragma once

#include "group/lifecycle/runtime.h"

namespace unisono {

// Under the mutex, when all its members are in the node's roster. A group whose record cannot be had works without.
void keep_record(Runtime& runtime, GroupCore& group);

}  // namespace unisono

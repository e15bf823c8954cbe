// Re-forming in real time: drives group/lifecycle/reform over the links of a node and makes the group of the new roster.
#pragma once

#include "group/lifecycle/runtime.h"
#include "unisono/group.h"

namespace unisono {

inline constexpr uint32_t world_group_number = 1;

// Makes the engine's group of all members of the node's roster, and points `state` at it. Under the mutex.
void form_world_group(Runtime& runtime, internal::GroupState& state);

// Hands the state machine's messages to the links. Under the mutex.
void flush_reform_sends(Runtime& runtime);

Result<Reformed> reform_world(Runtime& runtime, internal::GroupState& state);

}  // namespace unisono

// Re-forming in real time: drives group/lifecycle/reform over the links of a process and makes the group of the new roster.
#pragma once

#include "group/lifecycle/runtime.h"
#include "unisono/group.h"

namespace unisono {

inline constexpr uint32_t world_group_number = 1;

// Makes the engine's group of all members of the roster, and points `state` at it.
void form_world_group(GuardedState& guarded, internal::GroupState& state);

// Sends the messages of the state machine.
void flush_reform_sends(GuardedState& guarded);

Result<Reformed> reform_world(Runtime& runtime, internal::GroupState& state);

}  // namespace unisono

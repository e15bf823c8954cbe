// Re-forms the group in real time. Connects the state machine group/lifecycle/reform with the links of this process, and makes
// the group of the new roster.
#pragma once

#include "group/lifecycle/runtime.h"
#include "unisono/group.h"

namespace unisono {

inline constexpr uint32_t world_group_number = 1;

// Makes the engine's group that contains all members of the roster, and lets `state` point to it.
void form_world_group(GuardedState& guarded, internal::GroupState& state);

// Sends the messages that the state machine wants to send.
void flush_reform_sends(GuardedState& guarded);

Result<Reformed> reform_world(Runtime& runtime, internal::GroupState& state);

}  // namespace unisono

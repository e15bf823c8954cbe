// Types that all parts of an elastic run share: the channel of a message and the role of a peer.
//
// A message is a byte string. Its first byte is the channel, which selects the receiving part of the process. Each message
// travels whole in one frame. From one peer to another, messages arrive in order, and are lost only if the link breaks.
#pragma once

#include <compare>
#include <cstdint>

#include "wire/peer_id.h"

namespace unisono {

enum class ElasticChannel : uint8_t {
  roster = 1,     // tells which peers there are (elastic/roster/roster_messages)
  formation = 2,  // tells which peers are in a group (elastic/formation/formation_messages)
  round = 3,      // averages in a group (elastic/round/round_messages)
  state = 4,      // carries the state that a joiner loads (elastic/state/state_messages)
};
inline constexpr int elastic_channel_count = 5;  // number of channels plus 1, because 0 is not a channel

enum class ElasticRole : uint8_t {
  peer = 0,
  // A client opens all its connections itself, because other processes cannot reach it. It owns no chunks (pieces of the vector
  // that one member adds up), and it is never a coordinator.
  client = 1,
  // A reducer has no vector: its weight is 0, and it never contributes. It owns chunks.
  reducer = 2,
};
const char* name(ElasticRole role);

// Identifies a group. The coordinator that forms the group draws these 128 random bits.
struct GroupId {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};

}  // namespace unisono

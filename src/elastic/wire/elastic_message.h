// Types that all parts of an elastic run share: the channel of a message and the role of a peer.
//
// A message is a byte string. Its first byte is its channel; the rest belongs to the part that the channel names. A message
// travels whole, in one frame, in order per pair of peers, and is lost only with the link.
#pragma once

#include <compare>
#include <cstdint>

#include "wire/peer_id.h"

namespace unisono {

enum class ElasticChannel : uint8_t {
  roster = 1,     // elastic/roster/roster_messages: which peers there are
  formation = 2,  // elastic/formation/formation_messages: which peers are in a group
  round = 3,      // elastic/round/round_messages: averaging in a group
  state = 4,      // elastic/state/state_messages: the state that a joiner loads
};
inline constexpr int elastic_channel_count = 5;  // includes 0, which names no channel

enum class ElasticRole : uint8_t {
  peer = 0,
  client = 1,   // cannot be reached: opens all connections itself, owns no chunks, is never a coordinator
  reducer = 2,  // has no vector: weight 0, never a contributor, but owns chunks
};
const char* name(ElasticRole role);

// 128 random bits, drawn by the coordinator that formed the group.
struct GroupId {
  uint64_t low = 0;
  uint64_t high = 0;
  friend auto operator<=>(const GroupId&, const GroupId&) = default;
};

}  // namespace unisono

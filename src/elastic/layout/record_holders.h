// The peers that keep a record: the live peers with the highest scores under its key (rendezvous hashing, Thaler and
// Ravishankar 1998).
//
// If the rosters of two peers differ by a peers on one side and b on the other, their sets of three holders share at least 3 -
// max(a, b).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

inline constexpr size_t record_holders_max = 3;

uint64_t fnv1a64(std::string_view text);
// The score is mix64(fnv1a64(key) XOR pid64), where pid64 is PeerId::low.
inline uint64_t pid64(const PeerId& id) { return id.low; }
uint64_t holder_score(std::string_view key, const PeerId& peer);

// All of `peers` by descending score under the key. Equal scores (chance 2^-64) are ordered by ascending pid64.
std::vector<PeerId> by_score(std::string_view key, std::span<const PeerId> peers);
// The first record_holders_max peers of by_score(), or all if there are fewer.
std::vector<PeerId> record_holders(std::string_view key, std::span<const PeerId> peers);

// "layout/<run>/<version>"
std::string layout_key(std::string_view run, uint64_t version);
// Names one group to be formed: all peers that register for the same slot are in one group.
struct SlotName {
  uint64_t layout_version = 0;
  uint64_t layout_digest = 0;  // not part of the key: a coordinator forms groups for one digest of a version only
  uint64_t step = 0;
  uint32_t round = 0;
  uint32_t line = 0;
  friend auto operator<=>(const SlotName&, const SlotName&) = default;
};
// "seat/<run>/<version>/<averaging step>/<round>/<line>"
std::string slot_key(std::string_view run, const SlotName& slot);
// For messages: "averaging step 7, round 1, line 3 of layout 2".
std::string to_string(const SlotName& slot);

}  // namespace unisono

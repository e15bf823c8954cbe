// Who keeps a record: the live peers with the highest scores under its key (rendezvous hashing, Thaler and Ravishankar 1998).
//
// Peers whose rosters differ by a peers on one side and b on the other name sets of three that share at least 3 - max(a, b).
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
// mix64(fnv1a64(key) XOR pid64); pid64 is PeerId::low.
inline uint64_t pid64(const PeerId& id) { return id.low; }
uint64_t holder_score(std::string_view key, const PeerId& peer);

// All of `peers` by descending score under the key; equal scores (the chance is 2^-64) by ascending pid64.
std::vector<PeerId> by_score(std::string_view key, std::span<const PeerId> peers);
// The first record_holders_max of them; fewer if there are fewer.
std::vector<PeerId> record_holders(std::string_view key, std::span<const PeerId> peers);

// "layout/<run>/<version>"
std::string layout_key(std::string_view run, uint64_t version);
// What a slot is for: everybody who registers for the same slot is in one group.
struct SlotName {
  uint64_t layout_version = 0;
  uint64_t layout_digest = 0;  // not in the key: coordinators slot one digest of a version only
  uint64_t step = 0;
  uint32_t round = 0;
  uint32_t line = 0;
  friend auto operator<=>(const SlotName&, const SlotName&) = default;
};
// "seat/<run>/<version>/<averaging step>/<round>/<line>"
std::string slot_key(std::string_view run, const SlotName& slot);
// "averaging step 7, round 1, line 3 of layout 2", for messages.
std::string to_string(const SlotName& slot);

}  // namespace unisono

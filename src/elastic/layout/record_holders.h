// The peers that keep a record, that is, the live peers with the highest scores under the record's key. This is rendezvous
// hashing (Thaler and Ravishankar 1998).
//
// A record has three holders if there are enough peers. Two peers may have different rosters. If `a` peers are only in the
// first roster and `b` peers are only in the second, then the holders according to both rosters have at least 3 - max(a, b)
// peers in common.
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
// Returns the 64 bits of a PeerId that are hashed. The score of a peer is mix64(fnv1a64(key) XOR pid64).
inline uint64_t pid64(const PeerId& id) { return id.low; }
uint64_t holder_score(std::string_view key, const PeerId& peer);

// Returns all of `peers`, ordered by descending score under the key. Peers with equal scores (probability 2^-64) are ordered by
// ascending pid64.
std::vector<PeerId> by_score(std::string_view key, std::span<const PeerId> peers);
// Returns the first record_holders_max peers of by_score(), or all peers if there are fewer.
std::vector<PeerId> record_holders(std::string_view key, std::span<const PeerId> peers);

// Returns "layout/<run>/<version>".
std::string layout_key(std::string_view run, uint64_t version);
// Identifies one group that is to be formed. All peers that register for the same slot come into the same group.
struct SlotName {
  uint64_t layout_version = 0;
  // The digest is not part of slot_key(). For each layout version, a coordinator forms groups for one digest only.
  uint64_t layout_digest = 0;
  uint64_t step = 0;
  uint32_t round = 0;
  uint32_t line = 0;
  friend auto operator<=>(const SlotName&, const SlotName&) = default;
};
// Returns "seat/<run>/<version>/<averaging step>/<round>/<line>".
std::string slot_key(std::string_view run, const SlotName& slot);
// Returns a text for messages, for example "averaging step 7, round 1, line 3 of layout 2".
std::string to_string(const SlotName& slot);

}  // namespace unisono

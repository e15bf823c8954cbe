// The key of a peer under `grid = chunk_keys`, the published rule: peers with the same key form one group. A key has d-1 digits
// in base M. After each group the oldest digit is dropped and the peer's slot in that group is appended. Members of a group get
// different slots, so they do not meet again in the next d-1 groups.
//
// It is exact after d rounds for N = M^d, if M peers hold each key at first. Source: hivemind's `averaging/key_manager.py`.
// There, slots are drawn without replacement, seeded by the group's id; keys move when a group is assembled, whatever its
// averaging comes to; a peer that found no group keeps its key. Values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

// The number of keys, M^(d-1). 0: this layout has no keys, because it has another grid or one group of all (d = 1).
uint32_t key_count(const Layout& layout);
// M: the most members with values that a group may have. For layouts with keys.
uint32_t key_group(const Layout& layout);
// Rank mod key_count. For a peer that the layout does not name: mix64(pid64) mod key_count. For layouts with keys.
uint32_t first_key(const Layout& layout, const PeerId& peer);
// The numbers 0 … slots-1, shuffled by the group's id.
std::vector<uint32_t> draw_slots(const GroupId& group, uint32_t slots);

class MoshpitKey {
 public:
  // Starts from first_key() unless the key is already held under this layout.
  void enter(const Layout& layout, const PeerId& self);
  // Call when a group was assembled, with the peer's slot in it. The slot comes from the network: an impossible one counts
  // modulo M.
  void move(uint32_t slot);

  bool held() const { return count_ > 0; }
  uint32_t index() const { return index_; }  // the digits as a number, oldest first; below key_count

 private:
  uint64_t version_ = 0, digest_ = 0;  // of the layout that the key is held under
  uint32_t count_ = 0;
  uint32_t group_ = 0;
  uint32_t index_ = 0;
};

}  // namespace unisono

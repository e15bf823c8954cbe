// The key of a peer under `grid = chunk_keys`, which is the published rule: peers with the same key form one group. A key has
// d-1 digits in base M. After each group, the key loses its oldest digit. Its newest digit is the peer's slot in that group.
// Members of a group get different slots, so no two of them meet again in the next d-1 groups.
//
// For N = M^d peers, d rounds give the exact mean if each key belongs to M peers at first. The rule comes from hivemind's
// `averaging/key_manager.py`. As in hivemind, slots are drawn without replacement, and the group's id is the seed. A key
// changes when a group is assembled, even if the group's averaging then fails. A peer that finds no group keeps its key. Values
// and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

// Returns the number of keys, which is M^(d-1). Returns 0 if the layout has no keys, because its grid is of another kind or has
// only one axis.
uint32_t key_count(const Layout& layout);
// Returns M: at most this many members of one group may have values. Requires a layout with keys.
uint32_t key_group(const Layout& layout);
// Returns rank mod key_count if the layout lists the peer, otherwise mix64(pid64) mod key_count. Requires a layout with keys.
uint32_t first_key(const Layout& layout, const PeerId& peer);
// Returns the numbers 0 … slots-1 in an order that the group's id determines.
std::vector<uint32_t> draw_slots(const GroupId& group, uint32_t slots);

class MoshpitKey {
 public:
  // Sets the key to first_key(). Does nothing if this object already holds a key for this layout.
  void enter(const Layout& layout, const PeerId& self);
  // Call when a group was assembled. `slot` is the peer's slot in this group. The number comes from the network, so it is taken
  // modulo M.
  void move(uint32_t slot);

  bool held() const { return count_ > 0; }
  // Returns the key as a number below key_count. The oldest digit is the most significant one.
  uint32_t index() const { return index_; }

 private:
  uint64_t version_ = 0, digest_ = 0;  // identify the layout to which the key belongs
  uint32_t count_ = 0;
  uint32_t group_ = 0;
  uint32_t index_ = 0;
};

}  // namespace unisono

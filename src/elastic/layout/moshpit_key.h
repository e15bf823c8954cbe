// The key of a peer under `grid = chunk_keys`, the rule as published: who has the same key is in one group. A key has d-1
// digits base M; with each group its oldest digit goes, and the peer's slot in that group comes. Members have different slots,
// so they are not together again in the d-1 groups that follow.
//
// Exact after d rounds for N = M^d, with each key held by M peers at first. Source: the rule is that of hivemind
// (`averaging/key_manager.py`): slots are drawn without replacement, by the id of the group; keys move when a group is
// assembled, whatever becomes of its averaging; who found none keeps its key. Values, and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/layout.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

// M^(d-1). 0: there are no keys under this layout, because its grid is another one, or because all peers are one group (d = 1).
uint32_t key_count(const Layout& layout);
// M: so many members that have values are a group at most. For layouts with keys.
uint32_t key_group(const Layout& layout);
// Rank mod key_count; of a peer that the layout does not name: mix64(pid64) mod key_count. For layouts with keys.
uint32_t first_key(const Layout& layout, const PeerId& peer);
// 0 … slots-1, in an order that the group's id decides.
std::vector<uint32_t> draw_slots(const GroupId& group, uint32_t slots);

class MoshpitKey {
 public:
  // Begins anew, unless this is the layout that it is held under.
  void enter(const Layout& layout, const PeerId& self);
  // A group was assembled, and this is the peer's slot there. It comes from the network: of one that nobody can have, the
  // remainder counts.
  void move(uint32_t slot);

  bool held() const { return count_ > 0; }
  uint32_t index() const { return index_; }  // the digits as a number, the oldest first; below key_count

 private:
  uint64_t version_ = 0, digest_ = 0;  // of the layout
  uint32_t count_ = 0;
  uint32_t group_ = 0;
  uint32_t index_ = 0;
};

}  // namespace unisono

// Describes a group that a coordinator has formed: its members, their order, and how many chunks each member owns. All members
// hold the same descriptor.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/record_holders.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

struct GroupMember {
  PeerId id;
  uint32_t position = 0;  // coordinate on the round's axis; under a layout with keys, the member's drawn slot
  bool weighted = false;  // true: the member's weight is above 0
  // True: the layout puts the member on this line. False: the member is a newcomer, and a hash has chosen the line for it.
  bool in_layout = false;
  ElasticRole role = ElasticRole::peer;
  double bandwidth = 0;  // measured, in bytes/s; unknown if below 0
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

struct GroupDescriptor {
  GroupId id;
  SlotName slot;
  // All members, reducers included, ordered by rank. There are 2 … 2·max_group members. Their ranks follow descending scores
  // under the group's id.
  std::vector<GroupMember> members;
  // By rank: how many chunks the member owns. The members own consecutive ranges of chunks, in rank order.
  std::vector<uint32_t> chunk_counts;
  uint64_t schema = 0;
  // True if the group has all peers that the layout puts on its line of the grid. Under a layout with keys: true if M members
  // of the group are in the layout.
  bool line_complete = false;
  // The layout puts these peers on the line, but they did not register. The group's members report these peers in their
  // REGISTER of the next averaging step.
  std::vector<PeerId> missing;
  // The number of the highest opened averaging step that the coordinator knows, plus 1. 0: it knows none.
  uint64_t highest_opened = 0;
  friend bool operator==(const GroupDescriptor&, const GroupDescriptor&) = default;

  // Returns the peer's rank, or members.size() if the peer is not a member.
  uint32_t rank_of(const PeerId& peer) const;
};

}  // namespace unisono

// A group as its coordinator formed it: who is in it, in which order, who owns how many chunks. All members hold the same one.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/record_holders.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

struct GroupMember {
  PeerId id;
  uint32_t position = 0;   // coordinate on the axis of the round; with keys, its slot
  bool weighted = false;   // its weight is above 0
  bool in_layout = false;  // a layout member of this line; others (new ones) came by hash
  ElasticRole role = ElasticRole::peer;
  double bandwidth = 0;  // bytes/s, as measured; below 0: not known
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

struct GroupDescriptor {
  GroupId id;
  SlotName slot;
  std::vector<GroupMember> members;    // by rank: descending score under the group's id; 2 … 2·max_group, reducers included
  std::vector<uint32_t> chunk_counts;  // by rank: how many chunks each owns, contiguous in rank order
  uint64_t schema = 0;
  bool line_complete =
      false;  // every layout member of the line is a member; with keys: as many members of the layout as a group has
  std::vector<PeerId>
      missing;  // expected, waited for in vain (or known to lag); handed on by REGISTER of the next averaging step
  uint64_t highest_opened = 0;  // averaging step that the coordinator knows of
  friend bool operator==(const GroupDescriptor&, const GroupDescriptor&) = default;

  // Rank of the peer, or members.size().
  uint32_t rank_of(const PeerId& peer) const;
};

}  // namespace unisono

// A group as its coordinator formed it: its members, their order, and how many chunks each owns. All members hold the same
// descriptor.
#pragma once

#include <cstdint>
#include <vector>

#include "elastic/layout/record_holders.h"
#include "elastic/wire/elastic_message.h"
#include "wire/peer_id.h"

namespace unisono {

struct GroupMember {
  PeerId id;
  uint32_t position = 0;   // coordinate on the round's axis; under a layout with keys, its slot
  bool weighted = false;   // its weight is above 0
  bool in_layout = false;  // the layout names it for this line; false: a newcomer, assigned to the line by hash
  ElasticRole role = ElasticRole::peer;
  double bandwidth = 0;  // bytes/s, measured; below 0: unknown
  friend bool operator==(const GroupMember&, const GroupMember&) = default;
};

struct GroupDescriptor {
  GroupId id;
  SlotName slot;
  // By rank: descending score under the group's id. 2 … 2·max_group members, reducers included.
  std::vector<GroupMember> members;
  std::vector<uint32_t> chunk_counts;  // by rank: number of chunks owned; owners' chunks are contiguous in rank order
  uint64_t schema = 0;
  // Every layout member of the line is a member. With keys: as many layout members as a group can have.
  bool line_complete = false;
  // Members that were expected but did not come, or are known to lag. Passed on by REGISTER of the next averaging step.
  std::vector<PeerId> missing;
  uint64_t highest_opened = 0;  // highest opened averaging step that the coordinator knows of
  friend bool operator==(const GroupDescriptor&, const GroupDescriptor&) = default;

  // Rank of the peer; members.size() if it is not a member.
  uint32_t rank_of(const PeerId& peer) const;
};

}  // namespace unisono

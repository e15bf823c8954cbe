#include "elastic/formation/group_descriptor.h"

#include <algorithm>

namespace unisono {

uint32_t GroupDescriptor::rank_of(const PeerId& peer) const {
  const auto found = std::find_if(members.begin(), members.end(), [&](const GroupMember& member) { return member.id == peer; });
  return static_cast<uint32_t>(found - members.begin());
}

}  // namespace unisono

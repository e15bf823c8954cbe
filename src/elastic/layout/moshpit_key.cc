#include "elastic/layout/moshpit_key.h"

#include <numeric>
#include <utility>

#include "base/random.h"
#include "elastic/layout/record_holders.h"

namespace unisono {

uint32_t key_count(const Layout& layout) {
  if (layout.grid != GridKind::chunk_keys || layout.dims.size() < 2) return 0;
  uint32_t count = 1;
  for (size_t digit = 1; digit < layout.dims.size(); ++digit) count *= layout.dims[digit];
  return count;
}

uint32_t key_group(const Layout& layout) { return layout.dims.front(); }

uint32_t first_key(const Layout& layout, const PeerId& peer) {
  const auto rank = layout.rank_of(peer);
  const uint64_t number = rank < layout.peers.size() ? rank : mix64(pid64(peer));
  return static_cast<uint32_t>(number % key_count(layout));
}

std::vector<uint32_t> draw_slots(const GroupId& group, uint32_t slots) {
  std::vector<uint32_t> order(slots);
  std::iota(order.begin(), order.end(), 0u);
  Random random(group.low ^ mix64(group.high));
  for (uint32_t left = slots; left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

void MoshpitKey::enter(const Layout& layout, const PeerId& self) {
  if (version_ == layout.version && digest_ == layout.digest) return;
  version_ = layout.version;
  digest_ = layout.digest;
  count_ = key_count(layout);
  group_ = count_ > 0 ? key_group(layout) : 0;
  index_ = count_ > 0 ? first_key(layout, self) : 0;
}

void MoshpitKey::move(uint32_t slot) {
  if (held()) index_ = static_cast<uint32_t>((uint64_t{index_} * group_ + slot % group_) % count_);
}

}  // namespace unisono

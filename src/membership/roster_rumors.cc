#include "membership/roster_rumors.h"

#include <algorithm>

namespace unisono {

void RosterRumors::add(const PeerId& id, uint32_t times, bool matters) {
  if (times == 0) return;
  auto& rumor = rumors_[id];
  order_.erase(place_of(id, rumor));
  // One entry says all that there is to say of a peer: what is still to be told of it goes with what is new.
  const auto left = rumor.times - rumor.sent;
  rumor = {.matters = matters || rumor.matters, .sent = 0, .times = std::max(times, left), .number = ++number_};
  order_.insert(place_of(id, rumor));
}

std::vector<PeerId> RosterRumors::take(size_t count) {
  std::vector<PeerId> taken;
  while (taken.size() < count && !order_.empty()) {
    taken.push_back(std::get<PeerId>(*order_.begin()));
    order_.erase(order_.begin());
  }
  for (const auto& id : taken) {
    auto& rumor = rumors_.at(id);
    if (++rumor.sent < rumor.times) order_.insert(place_of(id, rumor));
    else rumors_.erase(id);
  }
  return taken;
}

}  // namespace unisono

#include "membership/roster_rumors.h"

#include <algorithm>

namespace unisono {

void RosterRumors::add(const PeerId& id, uint32_t times, bool matters) {
  if (times == 0) return;
  auto& rumor = rumors_[id];
  rumor.matters = matters || (rumor.matters && rumor.left > 0);
  rumor.left = std::max(rumor.left, times);
  if (rumor.queued[rumor.matters]) return;
  rumor.queued[rumor.matters] = true;
  queues_[rumor.matters].push_back(id);
}

std::vector<PeerId> RosterRumors::take(size_t count) {
  std::vector<PeerId> taken;
  take_from(true, count, taken);
  take_from(false, count, taken);
  return taken;
}

void RosterRumors::take_from(bool matters, size_t count, std::vector<PeerId>& taken) {
  auto& queue = queues_[matters];
  for (size_t places = queue.size(); places > 0 && taken.size() < count; --places) {
    const auto id = queue.front();
    queue.pop_front();
    const auto found = rumors_.find(id);
    auto& rumor = found->second;
    rumor.queued[matters] = false;
    if (rumor.matters == matters && rumor.left > 0) {
      taken.push_back(id);
      if (--rumor.left > 0) {
        rumor.queued[matters] = true;
        queue.push_back(id);
      }
    }
    if (rumor.left == 0 && !rumor.queued[!matters]) rumors_.erase(found);
  }
}

}  // namespace unisono

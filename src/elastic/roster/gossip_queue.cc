#include "elastic/roster/gossip_queue.h"

#include <algorithm>

namespace unisono {
namespace {

constexpr size_t void_places_min = 64;  // so many may lie about before the lines are tidied

}  // namespace

void RosterRumors::put(const PeerId& id, Rumor& rumor) {
  auto& line = lines_[static_cast<size_t>(rumor.kind)];
  if (line.size() <= rumor.sent) line.resize(rumor.sent + 1);
  rumor.number = ++number_;
  line[rumor.sent].push_back({id, rumor.number});
  ++places_;
}

void RosterRumors::add(const PeerId& id, uint32_t times, RumorKind kind) {
  if (times == 0) return;
  auto& rumor = rumors_[id];
  if (rumor.kind == RumorKind::facts && kind != RumorKind::facts) ++standing_;
  rumor.times = std::max(times, rumor.times - rumor.sent);
  rumor.sent = 0;
  rumor.kind = std::max(rumor.kind, kind);
  put(id, rumor);
  if (places_ > 2 * rumors_.size() + void_places_min) tidy();
}

std::vector<PeerId> RosterRumors::take(size_t count) {
  std::vector<decltype(rumors_)::iterator> taken;
  for (size_t kind = kinds; kind-- > 0;) {
    for (auto& places : lines_[kind]) {
      while (taken.size() < count && !places.empty()) {
        const auto place = places.front();
        places.pop_front();
        --places_;
        const auto found = rumors_.find(place.id);
        if (found != rumors_.end() && found->second.number == place.number) taken.push_back(found);
      }
    }
  }
  std::vector<PeerId> ids;
  ids.reserve(taken.size());
  for (const auto& found : taken) {
    auto& rumor = found->second;
    ids.push_back(found->first);
    if (++rumor.sent < rumor.times) {
      put(found->first, rumor);
      continue;
    }
    standing_ -= rumor.kind != RumorKind::facts ? 1 : 0;
    rumors_.erase(found);
  }
  return ids;
}

// Drops void places: in lines whose turn seldom comes, they would pile up.
void RosterRumors::tidy() {
  places_ = 0;
  for (auto& line : lines_) {
    for (auto& places : line) {
      std::erase_if(places, [&](const Place& place) {
        const auto found = rumors_.find(place.id);
        return found == rumors_.end() || found->second.number != place.number;
      });
      places_ += places.size();
    }
  }
}

}  // namespace unisono

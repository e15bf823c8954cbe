#include "elastic/roster/gossip_queue.h"

#include <algorithm>

namespace unisono {
namespace {

constexpr size_t void_positions_min = 64;  // void positions tolerated before tidy() runs

}  // namespace

void GossipQueue::put(const PeerId& id, GossipItem& gossip_item) {
  auto& line = lines_[static_cast<size_t>(gossip_item.kind)];
  if (line.size() <= gossip_item.sent) line.resize(gossip_item.sent + 1);
  gossip_item.number = ++number_;
  line[gossip_item.sent].push_back({id, gossip_item.number});
  ++places_;
}

void GossipQueue::add(const PeerId& id, uint32_t times, GossipKind kind) {
  if (times == 0) return;
  auto& gossip_item = gossip_items_[id];
  if (gossip_item.kind == GossipKind::facts && kind != GossipKind::facts) ++standing_;
  gossip_item.times = std::max(times, gossip_item.times - gossip_item.sent);
  gossip_item.sent = 0;
  gossip_item.kind = std::max(gossip_item.kind, kind);
  put(id, gossip_item);
  if (places_ > 2 * gossip_items_.size() + void_positions_min) tidy();
}

std::vector<PeerId> GossipQueue::take(size_t count) {
  std::vector<decltype(gossip_items_)::iterator> taken;
  for (size_t kind = kinds; kind-- > 0;) {
    for (auto& places : lines_[kind]) {
      while (taken.size() < count && !places.empty()) {
        const auto place = places.front();
        places.pop_front();
        --places_;
        const auto found = gossip_items_.find(place.id);
        if (found != gossip_items_.end() && found->second.number == place.number) taken.push_back(found);
      }
    }
  }
  std::vector<PeerId> ids;
  ids.reserve(taken.size());
  for (const auto& found : taken) {
    auto& gossip_item = found->second;
    ids.push_back(found->first);
    if (++gossip_item.sent < gossip_item.times) {
      put(found->first, gossip_item);
      continue;
    }
    standing_ -= gossip_item.kind != GossipKind::facts ? 1 : 0;
    gossip_items_.erase(found);
  }
  return ids;
}

// Drops void positions. Otherwise they would pile up in lines that are seldom served.
void GossipQueue::tidy() {
  places_ = 0;
  for (auto& line : lines_) {
    for (auto& places : line) {
      std::erase_if(places, [&](const Place& place) {
        const auto found = gossip_items_.find(place.id);
        return found == gossip_items_.end() || found->second.number != place.number;
      });
      places_ += places.size();
    }
  }
}

}  // namespace unisono

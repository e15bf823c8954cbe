#include "elastic/roster/gossip_queue.h"

#include <algorithm>

namespace unisono {
namespace {

constexpr size_t void_positions_min = 64;  // tidy() runs only when there are more void positions than this

}  // namespace

void GossipQueue::put(const PeerId& id, GossipItem& gossip_item) {
  auto& queues = queues_[static_cast<size_t>(gossip_item.kind)];
  if (queues.size() <= gossip_item.sent) queues.resize(gossip_item.sent + 1);
  gossip_item.number = ++number_;
  queues[gossip_item.sent].push_back({id, gossip_item.number});
  ++positions_;
}

void GossipQueue::add(const PeerId& id, uint32_t times, GossipKind kind) {
  if (times == 0) return;
  auto& gossip_item = gossip_items_[id];
  if (gossip_item.kind == GossipKind::facts && kind != GossipKind::facts) ++status_count_;
  gossip_item.times = std::max(times, gossip_item.times - gossip_item.sent);
  gossip_item.sent = 0;
  gossip_item.kind = std::max(gossip_item.kind, kind);
  put(id, gossip_item);
  if (positions_ > 2 * gossip_items_.size() + void_positions_min) tidy();
}

std::vector<PeerId> GossipQueue::take(size_t count) {
  std::vector<decltype(gossip_items_)::iterator> taken;
  for (size_t kind = kinds; kind-- > 0;) {
    for (auto& positions : queues_[kind]) {
      while (taken.size() < count && !positions.empty()) {
        const auto position = positions.front();
        positions.pop_front();
        --positions_;
        const auto found = gossip_items_.find(position.id);
        if (found != gossip_items_.end() && found->second.number == position.number) taken.push_back(found);
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
    status_count_ -= gossip_item.kind != GossipKind::facts ? 1 : 0;
    gossip_items_.erase(found);
  }
  return ids;
}

// Drops void positions. If they were kept, they would pile up in queues from which take() seldom takes.
void GossipQueue::tidy() {
  positions_ = 0;
  for (auto& queues : queues_) {
    for (auto& positions : queues) {
      std::erase_if(positions, [&](const Position& position) {
        const auto found = gossip_items_.find(position.id);
        return found == gossip_items_.end() || found->second.number != position.number;
      });
      positions_ += positions.size();
    }
  }
}

}  // namespace unisono

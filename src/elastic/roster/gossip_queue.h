// Holds the roster entries that still have to be gossiped, one item per peer. Each item is sent a limited number of times, with
// any message to any peer. After that, all peers have it with high probability, and healing repairs the rest.
//
// An item is about a peer's status, or about its facts (such as finished averaging steps). Items about status are sent first.
// Among items of the same kind, the one that was sent least often goes first, so a new item does not wait for widely known
// ones. Each call costs O(1) per item on average.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "elastic/roster/peer_id_hash.h"

namespace unisono {

enum class GossipKind : uint8_t { facts = 0, status = 1 };

class GossipQueue {
 public:
  // Adds an item about the peer, to be sent `times` times. If an item about this peer is waiting already, the two are merged.
  // The merged item counts as not sent yet, and the larger number of sends applies. It is of kind `status` if one of the two
  // items is.
  void add(const PeerId& id, uint32_t times, GossipKind kind);
  // Returns at most `count` different peers, and counts the items about them as sent once more.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return gossip_items_.empty(); }
  size_t size() const { return gossip_items_.size(); }
  // Returns how many items are about a peer's status, and not about its facts.
  size_t status_count() const { return status_count_; }
  // Returns the number of positions in the queues. When an item moves to another queue, it leaves a void position behind.
  // Therefore there may be up to about twice as many positions as items.
  size_t positions() const { return positions_; }

 private:
  static constexpr size_t kinds = 2;
  struct GossipItem {
    GossipKind kind = GossipKind::facts;
    uint32_t sent = 0;
    uint32_t times = 0;   // how many times the item must be sent
    uint64_t number = 0;  // the item's valid position has this number; its other positions are void
  };
  struct Position {
    PeerId id;
    uint64_t number = 0;
  };
  using Queues = std::vector<std::deque<Position>>;  // queue i holds the items that were sent i times

  void put(const PeerId& id, GossipItem& gossip_item);
  void tidy();

  std::unordered_map<PeerId, GossipItem, PeerIdHash> gossip_items_;
  std::array<Queues, kinds> queues_;
  size_t positions_ = 0;  // positions in all queues; void ones count, too
  size_t status_count_ = 0;
  uint64_t number_ = 0;
};

}  // namespace unisono

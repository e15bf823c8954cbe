// Roster entries that still have to be gossiped. Each is sent a limited number of times, along with any message; after that all
// peers have it with high probability, and healing covers the rest. At most one item per peer.
//
// Items about the status of peers go before items about their facts, such as finished averaging steps. Within a kind the least
// sent ones go first, so that new items are not delayed by widely known ones. Each call costs O(1) per item on average.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "elastic/roster/peer_id_hash.h"

namespace unisono {

enum class GossipKind : uint8_t { facts = 0, standing = 1 };

class GossipQueue {
 public:
  // A waiting item of the same peer is merged with the new one: it is sent as often, and as early, as the more important of
  // both.
  void add(const PeerId& id, uint32_t times, GossipKind kind);
  // At most `count` peers, none twice.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return gossip_items_.empty(); }
  size_t size() const { return gossip_items_.size(); }
  // Number of items about a peer's status, not about facts alone.
  size_t standing() const { return standing_; }
  // Queue positions in use, void ones included: at most about twice as many as items.
  size_t places() const { return places_; }

 private:
  static constexpr size_t kinds = 2;
  struct GossipItem {
    GossipKind kind = GossipKind::facts;
    uint32_t sent = 0;
    uint32_t times = 0;   // how often it must be sent
    uint64_t number = 0;  // of its valid position; other positions of the peer are void
  };
  struct Place {
    PeerId id;
    uint64_t number = 0;
  };
  using Line = std::vector<std::deque<Place>>;  // indexed by how often its items were sent

  void put(const PeerId& id, GossipItem& gossip_item);
  void tidy();

  std::unordered_map<PeerId, GossipItem, PeerIdHash> gossip_items_;
  std::array<Line, kinds> lines_;
  size_t places_ = 0;  // in all lines, void ones included
  size_t standing_ = 0;
  uint64_t number_ = 0;
};

}  // namespace unisono

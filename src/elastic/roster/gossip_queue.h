// Which entries of the roster are still to be told around: each is sent a limited number of times, with whatever message goes
// out, and then everybody has it but for a small chance (healing takes care of that). At most one gossip item per peer. Those
// of who is there go before those of who finished which averaging step, and of each kind the ones that were sent least: news is
// not held up by what most have heard. Each call costs O(1) per gossip item, on average.
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
  // What is waiting of the peer goes with what is new: it is told as often, and as early, as the more important of both.
  void add(const PeerId& id, uint32_t times, GossipKind kind);
  // At most `count`, none twice.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return gossip_items_.empty(); }
  size_t size() const { return gossip_items_.size(); }
  // Those of who is there: not of facts alone.
  size_t standing() const { return standing_; }
  // Held; at most twice as many as gossip items, and some.
  size_t places() const { return places_; }

 private:
  static constexpr size_t kinds = 2;
  struct GossipItem {
    GossipKind kind = GossipKind::facts;
    uint32_t sent = 0;
    uint32_t times = 0;   // to be sent
    uint64_t number = 0;  // of its place; others of the peer are void
  };
  struct Place {
    PeerId id;
    uint64_t number = 0;
  };
  using Line = std::vector<std::deque<Place>>;  // by how often they were sent

  void put(const PeerId& id, GossipItem& gossip_item);
  void tidy();

  std::unordered_map<PeerId, GossipItem, PeerIdHash> gossip_items_;
  std::array<Line, kinds> lines_;
  size_t places_ = 0;  // in all lines, void ones too
  size_t standing_ = 0;
  uint64_t number_ = 0;
};

}  // namespace unisono

// A hash table from peers to numbers. It is made so that a look-up usually touches only one cache line: in a large run, every
// entry of every message is looked up, each time with cold caches. It uses open addressing with linear probing. At most half of
// the positions are in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "elastic/roster/peer_id_hash.h"

namespace unisono {

class PeerSlots {
 public:
  static constexpr uint32_t none = ~0u;

  // Returns the peer's number, or `none` if the peer is not in the table.
  uint32_t find(const PeerId& id) const {
    if (positions_.empty()) return none;
    for (size_t at = home(id);; at = next(at)) {
      const auto& position = positions_[at];
      if (position.number == none || position.id == id) return position.number;
    }
  }

  // Adds the peer with its number. The peer must not be in the table yet, and the number must not be `none`.
  void insert(const PeerId& id, uint32_t number) {
    if (2 * (count_ + 1) > positions_.size()) grow();
    put({id, number});
    ++count_;
  }

  void erase(const PeerId& id) {
    if (positions_.empty()) return;
    size_t hole = home(id);
    while (positions_[hole].number != none && positions_[hole].id != id) hole = next(hole);
    if (positions_[hole].number == none) return;
    --count_;
    // The search for an entry starts at the entry's home position, and stops at the first unused one. If the search would now
    // stop at the hole, the entry moves into the hole.
    for (size_t at = next(hole); positions_[at].number != none; at = next(at)) {
      const auto wanted = home(positions_[at].id);
      const bool reached_from_hole = hole <= at ? wanted <= hole || wanted > at : wanted <= hole && wanted > at;
      if (!reached_from_hole) continue;
      positions_[hole] = positions_[at];
      hole = at;
    }
    positions_[hole].number = none;
  }

  // Calls visit(id, number) for each peer, in no particular order. If two tables have gone through the same calls, their orders
  // are equal.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& position : positions_) {
      if (position.number != none) visit(position.id, position.number);
    }
  }
  size_t size() const { return count_; }

 private:
  static constexpr size_t positions_min = 16;
  struct Position {
    PeerId id;
    uint32_t number = none;
  };

  size_t home(const PeerId& id) const { return PeerIdHash()(id) & (positions_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (positions_.size() - 1); }
  void put(const Position& position) {
    size_t at = home(position.id);
    while (positions_[at].number != none) at = next(at);
    positions_[at] = position;
  }
  void grow() {
    const auto old =
        std::exchange(positions_, std::vector<Position>(positions_.empty() ? positions_min : 2 * positions_.size()));
    for (const auto& position : old) {
      if (position.number != none) put(position);
    }
  }

  std::vector<Position> positions_;  // the size is a power of two
  size_t count_ = 0;
};

}  // namespace unisono

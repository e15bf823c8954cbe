// A table from peers to numbers whose look-up usually touches one cache line. A large run asks it for each entry of each
// message, each time with cold caches. Open addressing with linear probing; at most half of the positions are taken.
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

  // Returns none if the peer is not in the table.
  uint32_t find(const PeerId& id) const {
    if (places_.empty()) return none;
    for (size_t at = home(id);; at = next(at)) {
      const auto& place = places_[at];
      if (place.number == none || place.id == id) return place.number;
    }
  }

  // The peer must not be in the table, and the number must not be `none`.
  void insert(const PeerId& id, uint32_t number) {
    if (2 * (count_ + 1) > places_.size()) grow();
    put({id, number});
    ++count_;
  }

  void erase(const PeerId& id) {
    if (places_.empty()) return;
    size_t hole = home(id);
    while (places_[hole].number != none && places_[hole].id != id) hole = next(hole);
    if (places_[hole].number == none) return;
    --count_;
    // Entries that this position had pushed further on move up.
    for (size_t at = next(hole); places_[at].number != none; at = next(at)) {
      const auto wanted = home(places_[at].id);
      const bool reached_from_hole = hole <= at ? wanted <= hole || wanted > at : wanted <= hole && wanted > at;
      if (!reached_from_hole) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole].number = none;
  }

  // Calls visit(id, number). The order is unspecified, but equal for equal histories.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const auto& place : places_) {
      if (place.number != none) visit(place.id, place.number);
    }
  }
  size_t size() const { return count_; }

 private:
  static constexpr size_t places_min = 16;
  struct Place {
    PeerId id;
    uint32_t number = none;
  };

  size_t home(const PeerId& id) const { return PeerIdHash()(id) & (places_.size() - 1); }
  size_t next(size_t at) const { return (at + 1) & (places_.size() - 1); }
  void put(const Place& place) {
    size_t at = home(place.id);
    while (places_[at].number != none) at = next(at);
    places_[at] = place;
  }
  void grow() {
    const auto old = std::exchange(places_, std::vector<Place>(places_.empty() ? places_min : 2 * places_.size()));
    for (const auto& place : old) {
      if (place.number != none) put(place);
    }
  }

  std::vector<Place> places_;  // the size is a power of two
  size_t count_ = 0;
};

}  // namespace unisono

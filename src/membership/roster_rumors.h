// Which entries of the roster are still to be told around: each is sent a limited number of times, with whatever message goes
// out, and then everybody has it but for a small chance (healing takes care of that). At most one rumor per peer. Those that
// matter (who is dead, who is not) go before those that do not (who finished which sweep), and those that were sent least go
// first: news is not held up by what most have heard. Each call costs O(log peers) per rumor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "wire/peer_id.h"

namespace unisono {

class RosterRumors {
 public:
  void add(const PeerId& id, uint32_t times, bool matters);
  // At most `count`, none twice.
  std::vector<PeerId> take(size_t count);
  bool empty() const { return rumors_.empty(); }
  size_t size() const { return rumors_.size(); }

 private:
  struct Rumor {
    bool matters = false;
    uint32_t sent = 0;
    uint32_t times = 0;   // to be sent
    uint64_t number = 0;  // the older goes first, if both were sent as often
  };
  using Place = std::tuple<bool, uint32_t, uint64_t, PeerId>;
  static Place place_of(const PeerId& id, const Rumor& rumor) { return {!rumor.matters, rumor.sent, rumor.number, id}; }

  std::map<PeerId, Rumor> rumors_;
  std::set<Place> order_;
  uint64_t number_ = 0;
};

}  // namespace unisono

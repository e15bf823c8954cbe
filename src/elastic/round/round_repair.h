// Which member to ask for a missing result: the others in turn, beginning with the next rank.
//
// Before the verdict each chunk is asked for at most three times. A decided chunk is asked for until it is here, because every
// living majority has a holder. An answer may take stall_timeout, counted from the question or from the member's last answer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace unisono {

struct FetchRequest {
  uint32_t to = 0;
  uint32_t chunk = 0;
  friend bool operator==(const FetchRequest&, const FetchRequest&) = default;
};

class RoundRepair {
 public:
  // may_ask: whether a rank should be asked now; never called with self.
  RoundRepair(uint32_t self, uint32_t members, Nanos stall_timeout, std::function<bool(uint32_t rank)> may_ask);

  // Requests a chunk. until_here: until it arrives; else at most three times. If the chunk is already wanted, a call with
  // until_here removes its limit, and any other call changes nothing.
  void want(uint32_t chunk, bool until_here);
  void got(uint32_t chunk, uint32_t from, Nanos now);
  void missed(uint32_t chunk, uint32_t from);
  // Stops waiting for members whose time is over, and asks the next ones.
  void step(Nanos now);
  Nanos next_deadline() const;
  std::vector<FetchRequest> take_requests() { return std::exchange(requests_, {}); }
  // No chunk is wanted any more.
  bool idle() const { return wanted_.empty(); }
  void clear() { wanted_.clear(); }

 private:
  struct Wanted {
    bool until_here = false;
    bool asking = false;
    uint32_t offset = 0;  // rank asked last, relative to self
    uint32_t tries = 0;
    Nanos asked_at = 0;
    Nanos pause_until = 0;  // all members were asked; not again before this time
  };
  Nanos expiry(const Wanted& wanted) const;
  uint32_t asked(const Wanted& wanted) const { return (self_ + wanted.offset) % members_; }
  // False: no member is left to ask.
  bool ask_next(uint32_t chunk, Wanted& wanted, Nanos now);

  uint32_t self_ = 0, members_ = 0;
  Nanos stall_timeout_ = 0;
  std::function<bool(uint32_t)> may_ask_;
  std::vector<Nanos> answered_at_;  // by rank
  std::map<uint32_t, Wanted> wanted_;
  std::vector<FetchRequest> requests_;
};

}  // namespace unisono

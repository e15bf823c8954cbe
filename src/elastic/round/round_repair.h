// Whom to ask for the results that a member lacks: the others in turn, beginning with the next rank.
//
// Before the verdict each chunk is asked for three times at most; what is decided is asked for until it is here, because
// somebody in every living majority has it. An answer may take a stall_timeout since it was asked for, or since the last one of
// the same member came.
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
  // may_ask: whether a rank is worth asking now; never self.
  RoundRepair(uint32_t self, uint32_t members, Nanos stall_timeout, std::function<bool(uint32_t rank)> may_ask);

  // Until it is here, or for three tries; a chunk that is already asked for goes on, but for longer.
  void want(uint32_t chunk, bool until_here);
  void got(uint32_t chunk, uint32_t from, Nanos now);
  void missed(uint32_t chunk, uint32_t from);
  // Gives up on whom it waited for too long, and asks the next ones.
  void step(Nanos now);
  Nanos next_deadline() const;
  std::vector<FetchRequest> take_requests() { return std::exchange(requests_, {}); }
  // Nothing is asked for any more.
  bool idle() const { return wanted_.empty(); }
  void clear() { wanted_.clear(); }

 private:
  struct Wanted {
    bool until_here = false;
    bool asking = false;
    uint32_t offset = 0;  // of who was asked last, from self
    uint32_t tries = 0;
    Nanos asked_at = 0;
    Nanos pause_until = 0;  // all were asked: not again at once
  };
  Nanos expiry(const Wanted& wanted) const;
  uint32_t asked(const Wanted& wanted) const { return (self_ + wanted.offset) % members_; }
  // False: there is nobody left to ask.
  bool ask_next(uint32_t chunk, Wanted& wanted, Nanos now);

  uint32_t self_ = 0, members_ = 0;
  Nanos stall_timeout_ = 0;
  std::function<bool(uint32_t)> may_ask_;
  std::vector<Nanos> answered_at_;  // by rank
  std::map<uint32_t, Wanted> wanted_;
  std::vector<FetchRequest> requests_;
};

}  // namespace unisono

// Repairs a round: decides which member to ask for a missing result. It asks the other members one after the other, beginning
// with the next rank.
//
// Before the verdict, a chunk is requested at most three times. If the verdict applies the chunk, it is requested until it
// arrives, because every living majority has a member that holds it. A member has stall_timeout for an answer. This time begins
// with the request, or with the member's last answer if that came later.
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
  // may_ask(rank) must tell whether the member may be asked now. It is never called for `self`.
  RoundRepair(uint32_t self, uint32_t members, Nanos stall_timeout, std::function<bool(uint32_t rank)> may_ask);

  // Begins to request a chunk: until it arrives if until_received is true, otherwise at most three times. If the chunk is
  // requested already, `true` lifts the limit, and `false` changes nothing.
  void request_chunk(uint32_t chunk, bool until_received);
  void on_result(uint32_t chunk, uint32_t from, Nanos now);
  void on_miss(uint32_t chunk, uint32_t from);
  // For each chunk whose last request has timed out, asks the next member.
  void step(Nanos now);
  Nanos next_deadline() const;
  std::vector<FetchRequest> take_requests() { return std::exchange(requests_, {}); }
  // Returns true if no chunk is requested any more.
  bool idle() const { return wanted_.empty(); }
  void clear() { wanted_.clear(); }

 private:
  struct Wanted {
    bool until_received = false;
    bool asking = false;
    uint32_t offset = 0;  // the rank that was asked last is (self + offset) mod members
    uint32_t tries = 0;
    Nanos asked_at = 0;
    // Set once all members were asked. No member is asked again before this time.
    Nanos pause_until = 0;
  };
  Nanos expiry(const Wanted& wanted) const;
  uint32_t asked_member(const Wanted& wanted) const { return (self_ + wanted.offset) % members_; }
  // Asks the next member. Returns false if no member is left to ask.
  bool ask_next(uint32_t chunk, Wanted& wanted, Nanos now);

  uint32_t self_ = 0, members_ = 0;
  Nanos stall_timeout_ = 0;
  std::function<bool(uint32_t)> may_ask_;
  std::vector<Nanos> answered_at_;  // by rank: when the member last answered
  std::map<uint32_t, Wanted> wanted_;
  std::vector<FetchRequest> requests_;
};

}  // namespace unisono

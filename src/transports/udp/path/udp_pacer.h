// Decides when the next datagram may go out, and to which destination: one token bucket for the rank and one for each
// destination.
//
// A bucket holds at most max(two datagrams, what its rate gives in 250 us). So a pause is not followed by a faster burst, which
// would overflow shallow queues. Destinations take turns of one datagram each, or of as many as the rank's rate gives in 50 us:
// consecutive datagrams to one destination cost the kernel far less (segmentation offload). A destination without tokens or
// datagrams is skipped. Source: docs/design/methods/packet_loss.md, "Rates".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace unisono {

// Exact: it counts in billionths of a byte.
class TokenBucket {
 public:
  static constexpr uint64_t rate_max = 100'000'000'000;  // bytes/s; higher rates are reduced to it
  static constexpr Nanos burst_time = 250 * microsecond;
  static constexpr size_t debt_bytes_max = 128u << 10;

  // rate in bytes/s, at least 1. A new bucket is full.
  TokenBucket(uint64_t rate, uint32_t datagram_bytes);

  // Keeps what it holds, up to the new cap.
  void set(uint64_t rate, uint32_t datagram_bytes, Nanos now);
  uint64_t rate() const { return rate_; }

  // Takes `bytes`, or returns false and takes nothing. A datagram longer than the cap goes when the bucket is full, and leaves
  // it in debt.
  bool take(size_t bytes, Nanos now);
  // For datagrams that are sent in any case (answers, several at once): the bucket may then be in debt, by its cap or 128 KiB
  // at most.
  void spend(size_t bytes, Nanos now);
  // The earliest time, now or later, at which take() succeeds if nothing else is taken.
  Nanos ready_at(size_t bytes, Nanos now) const;

 private:
  int64_t credit(Nanos now) const;
  int64_t needed(size_t bytes) const;

  uint64_t rate_ = 1;
  int64_t cap_ = 0;
  int64_t credit_ = 0;  // at updated_
  Nanos updated_ = 0;
};

struct PacerSettings {
  uint32_t datagram_bytes = 1472;
  uint64_t rate_limit = 0;              // of the rank, bytes/s; 0: the largest rate of its destinations
  uint64_t destination_rate = 125'000;  // of each destination until set_rate
};

// Destinations are numbered 0 … count-1 in the order of their turns. For the ranks of a group that is destination_of(). In time
// slot t rank i sends to (i + 1 + t mod (N-1)) mod N, so that ranks in step never send to the same receiver.
class Pacer {
 public:
  Pacer(const PacerSettings& settings, size_t destinations);

  static constexpr uint32_t destination_of(uint32_t self, uint32_t rank, uint32_t world) {
    return (rank + world - self - 1) % world;
  }
  static constexpr uint32_t rank_of(uint32_t self, uint32_t destination, uint32_t world) {
    return (self + 1 + destination) % world;
  }

  // Adds destinations, which want nothing yet. Only this call allocates.
  void grow(size_t destinations);
  size_t destinations() const { return lanes_.size(); }

  // Sets the size of the next datagram for this destination; 0: there is none. Call again when it changes.
  void want(size_t destination, uint32_t bytes);
  bool wants(size_t destination) const { return lanes_[destination].wanted > 0; }
  void set_rate(size_t destination, uint64_t rate, Nanos now);
  uint64_t rate(size_t destination) const { return lanes_[destination].bucket.rate(); }
  void set_datagram_bytes(uint32_t bytes, Nanos now);
  void set_rate_limit(uint64_t rate, Nanos now);  // 0: none
  // A further limit for all destinations together; 0: none.
  void set_rank_rate(uint64_t rate, Nanos now);
  uint64_t largest_rate() const;  // of any destination

  // The destination whose turn it is, of those with a datagram and tokens for it. None: see ready_at(). Has no side effect on
  // turns.
  std::optional<size_t> next(Nanos now);
  // The kernel took `bytes` for this destination, in one or several datagrams; the turn passes on.
  void sent(size_t destination, size_t bytes, Nanos now);
  // Accounts for datagrams that did not wait for their turn: they need no tokens, but pay them.
  void spend(size_t destination, size_t bytes, Nanos now);
  // The time at which next() finds a destination; `never` if none wants anything.
  Nanos ready_at(Nanos now);

 private:
  struct Lane {
    TokenBucket bucket;
    uint32_t wanted = 0;
    Nanos blocked_until = 0;  // while in blocked_
  };
  static constexpr Nanos turn_time = 50 * microsecond;
  static constexpr uint64_t turn_bytes_max = 64u << 10;
  void unblock(Nanos now);
  uint64_t turn_bytes() const;
  uint64_t rank_rate() const;
  static void put(std::vector<uint64_t>& set, size_t destination, bool in);
  std::optional<size_t> first_open(size_t from) const;

  PacerSettings settings_;
  std::vector<Lane> lanes_;
  std::vector<uint64_t> open_;     // bit per lane: wants something and may have tokens
  std::vector<uint64_t> blocked_;  // bit per lane: wants something and lacks tokens
  Nanos unblock_at_ = never;       // not after the first of blocked_ becomes ready
  size_t turn_ = 0;
  uint64_t turn_used_ = 0;  // bytes in the current turn
  uint64_t rank_max_ = 0;
  TokenBucket rank_;
};

}  // namespace unisono

// Decides when the next datagram may be sent, and to which destination. There is one token bucket for the rank, and one for
// each destination.
//
// A bucket holds at most max(two datagrams, its rate * 250 us). Therefore no long burst follows a pause; such a burst would
// overflow short queues in the network. Destinations take turns. A turn is one datagram, or (the rank's rate) * 50 us if that
// is more. Long turns are good, because consecutive datagrams to the same destination cost the kernel far less (segmentation
// offload). A destination that has no tokens or no datagrams is skipped. Source: docs/design/methods/packet_loss.md, "Rates".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace unisono {

// A token bucket with exact arithmetic: it counts in billionths of a byte.
class TokenBucket {
 public:
  static constexpr uint64_t rate_max = 100'000'000'000;  // in bytes/s; a higher rate is reduced to this rate
  static constexpr Nanos burst_time = 250 * microsecond;
  static constexpr size_t debt_bytes_max = 128u << 10;

  // `rate` is in bytes/s, at least 1. A new bucket is full.
  TokenBucket(uint64_t rate, uint32_t datagram_bytes);

  // Changes the rate. The tokens stay in the bucket, as far as the new limit allows.
  void set(uint64_t rate, uint32_t datagram_bytes, Nanos now);
  uint64_t rate() const { return rate_; }

  // Takes `bytes`, or takes nothing and returns false. A datagram that is longer than the bucket's limit may be sent when the
  // bucket is full; after it the bucket is in debt.
  bool take(size_t bytes, Nanos now);
  // Takes `bytes` for datagrams that are sent in any case (answers, or several datagrams at once). The bucket may be in debt
  // after this, but by at most max(its limit, 128 KiB).
  void spend(size_t bytes, Nanos now);
  // Returns the earliest time at which take(bytes) succeeds if nothing else is taken before. The result is not before `now`.
  Nanos ready_at(size_t bytes, Nanos now) const;

 private:
  int64_t credit(Nanos now) const;
  int64_t needed(size_t bytes) const;

  uint64_t rate_ = 1;
  int64_t cap_ = 0;
  int64_t credit_ = 0;  // the tokens at the time updated_, in billionths of a byte; a negative number is a debt
  Nanos updated_ = 0;
};

struct PacerSettings {
  uint32_t datagram_bytes = 1472;
  uint64_t rate_limit = 0;              // limit for the whole rank, bytes/s; 0: the largest rate that a destination has
  uint64_t destination_rate = 125'000;  // the rate of a destination until set_rate() is called for it, bytes/s
};

// Destinations have the numbers 0 … count-1, and take turns in this order. In a group of N ranks, destination_of() gives the
// number of a rank. In time slot t, rank i sends to rank (i + 1 + t mod (N-1)) mod N. Therefore ranks that are in the same time
// slot never send to the same receiver.
class Pacer {
 public:
  Pacer(const PacerSettings& settings, size_t destinations);

  static constexpr uint32_t destination_of(uint32_t self, uint32_t rank, uint32_t world) {
    return (rank + world - self - 1) % world;
  }
  static constexpr uint32_t rank_of(uint32_t self, uint32_t destination, uint32_t world) {
    return (self + 1 + destination) % world;
  }

  // Adds destinations. They have no datagrams yet. No other call allocates memory.
  void grow(size_t destinations);
  size_t destinations() const { return lanes_.size(); }

  // Sets the size of the next datagram for this destination. 0 means that there is no datagram. Call this again when the size
  // changes.
  void want(size_t destination, uint32_t bytes);
  bool wants(size_t destination) const { return lanes_[destination].wanted > 0; }
  void set_rate(size_t destination, uint64_t rate, Nanos now);
  uint64_t rate(size_t destination) const { return lanes_[destination].bucket.rate(); }
  void set_datagram_bytes(uint32_t bytes, Nanos now);
  void set_rate_limit(uint64_t rate, Nanos now);  // 0: no limit
  // Sets one more limit for the rate of all destinations together; 0: no limit.
  void set_rank_rate(uint64_t rate, Nanos now);
  uint64_t largest_rate() const { return largest_rate_; }  // the largest rate of any destination

  // Returns the next destination, in the order of their turns, that has a datagram and the tokens for it. This does not end its
  // turn. If there is none, ready_at() returns the time at which to call again.
  std::optional<size_t> next(Nanos now);
  // Call this when the kernel has taken `bytes` for this destination, in one or several datagrams. Ends the turn of the
  // destination if the turn is used up.
  void sent(size_t destination, size_t bytes, Nanos now);
  // Takes tokens for datagrams that were sent without waiting for their turn.
  void spend(size_t destination, size_t bytes, Nanos now);
  // Returns the time from which on next() finds a destination; `never` if no destination has a datagram.
  Nanos ready_at(Nanos now);

 private:
  struct Lane {
    TokenBucket bucket;
    uint32_t wanted = 0;
    Nanos blocked_until = 0;  // The time when the bucket has tokens again. It is valid while the lane is in blocked_.
  };
  static constexpr Nanos turn_time = 50 * microsecond;
  static constexpr uint64_t turn_bytes_max = 64u << 10;
  void unblock(Nanos now);
  uint64_t turn_bytes() const;
  uint64_t rank_rate() const;
  void find_largest_rate();
  static void put(std::vector<uint64_t>& set, size_t destination, bool in);
  std::optional<size_t> first_open(size_t from) const;

  PacerSettings settings_;
  std::vector<Lane> lanes_;
  std::vector<uint64_t> open_;     // one bit per lane; 1: the lane has a datagram, and may have tokens
  std::vector<uint64_t> blocked_;  // one bit per lane; 1: the lane has a datagram, but no tokens for it
  Nanos unblock_at_ = never;       // no lane in blocked_ has tokens before this time
  size_t turn_ = 0;
  uint64_t turn_used_ = 0;  // bytes sent in the current turn
  uint64_t rank_max_ = 0;
  uint64_t largest_rate_ = 0;
  TokenBucket rank_;
};

}  // namespace unisono

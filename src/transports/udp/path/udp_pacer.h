// When the next datagram may go out, and to whom: one bucket of tokens for the rank and one for each destination.
//
// A bucket holds at most max(two datagrams, what its rate gives in 250 us): what was not sent during a pause is not sent faster
// after it, because such bursts overflow shallow queues. Destinations take turns, one datagram each, or as many as the rank's
// rate gives in 50 us: datagrams to one destination, one behind the other, cost the kernel far less (segmentation offload). One
// without tokens or without anything to send is passed over, not waited for. Source: docs/design/methods/packet_loss.md,
// "Rates".
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace unisono {

// Exact: counts in billionths of a byte.
class TokenBucket {
 public:
  static constexpr uint64_t rate_max = 100'000'000'000;  // bytes/s; more is cut to it
  static constexpr Nanos burst_time = 250 * microsecond;
  static constexpr size_t debt_bytes_max = 128u << 10;

  // rate in bytes/s, at least 1. A new bucket is full.
  TokenBucket(uint64_t rate, uint32_t datagram_bytes);

  // Keeps what it holds, up to the new cap.
  void set(uint64_t rate, uint32_t datagram_bytes, Nanos now);
  uint64_t rate() const { return rate_; }

  // Takes `bytes`, or nothing and returns false. Something longer than the cap goes when the bucket is full, and leaves it in
  // debt.
  bool take(size_t bytes, Nanos now);
  // For what is sent in any case (answers, several datagrams at once): the bucket may be in debt after it, by its cap or 128
  // KiB at most.
  void spend(size_t bytes, Nanos now);
  // When take() will succeed, if nothing else is taken: now or later.
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
  uint64_t destination_rate = 125'000;  // of a destination until set_rate
};

// Destinations are numbered 0 … count-1 in the order of their turns. For the ranks of a group that is destination_of(): in slot
// t rank i sends to (i + 1 + t mod (N-1)) mod N, so that in step no two ranks send to one receiver.
class Pacer {
 public:
  Pacer(const PacerSettings& settings, size_t destinations);

  static constexpr uint32_t destination_of(uint32_t self, uint32_t rank, uint32_t world) {
    return (rank + world - self - 1) % world;
  }
  static constexpr uint32_t rank_of(uint32_t self, uint32_t destination, uint32_t world) {
    return (self + 1 + destination) % world;
  }

  // More destinations, which want nothing yet. Allocates; the rest does not.
  void grow(size_t destinations);
  size_t destinations() const { return lanes_.size(); }

  // Bytes of the next datagram for this destination; 0: there is none. Say it again when it changes.
  void want(size_t destination, uint32_t bytes);
  bool wants(size_t destination) const { return lanes_[destination].wanted > 0; }
  void set_rate(size_t destination, uint64_t rate, Nanos now);
  uint64_t rate(size_t destination) const { return lanes_[destination].bucket.rate(); }
  void set_datagram_bytes(uint32_t bytes, Nanos now);
  void set_rate_limit(uint64_t rate, Nanos now);  // 0: none
  // What all destinations together get at most, beside that; 0: none.
  void set_rank_rate(uint64_t rate, Nanos now);
  uint64_t largest_rate() const;  // of a destination

  // Whose turn it is, of those that want something and have tokens for it; none: see ready_at(). Asking changes nothing.
  std::optional<size_t> next(Nanos now);
  // `bytes` were given to the kernel for this destination, in one datagram or several; the turn goes to the one after it.
  void sent(size_t destination, size_t bytes, Nanos now);
  // For what did not wait for its turn: no tokens are needed, but they are paid.
  void spend(size_t destination, size_t bytes, Nanos now);
  // When next() will find one; `never` if nobody wants anything.
  Nanos ready_at(Nanos now);

 private:
  struct Lane {
    TokenBucket bucket;
    uint32_t wanted = 0;
    Nanos blocked_until = 0;  // of a lane in blocked_
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
  std::vector<uint64_t> open_;     // bit per lane: wants something and is not known to lack tokens
  std::vector<uint64_t> blocked_;  // bit per lane: wants something and lacks tokens
  Nanos unblock_at_ = never;       // not after the first of the blocked
  size_t turn_ = 0;
  uint64_t turn_used_ = 0;  // bytes, by the destination whose turn it is
  uint64_t rank_max_ = 0;
  TokenBucket rank_;
};

}  // namespace unisono

// Lossy delivery: how a collective treats datagrams that do not arrive. Opt-in; needs links of the transport "udp".
//
// Method: "Distributed Training under Packet Loss", arXiv 2507.07114. The estimator, the deadlines and the drift formulae are
// in docs/design/methods/packet_loss.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/export.h"
#include "unisono/status.h"

namespace unisono {

// automatic switches between the two, starting with reliable. It becomes lossy if, over 64 operations, the phases' 95th
// percentile exceeds 1.5 times their median and the loss is in [0.1 %, loss_budget]. It becomes reliable again if the loss over
// 256 operations is below 0.05 %. Rank 0 decides for all, from the data that it receives. It stays reliable where links carry
// no datagrams or the call cannot be lossy.
enum class Delivery : uint8_t { reliable = 0, lossy = 1, automatic = 2 };

// How missing contributions are estimated, per range of elements. R of the N-1 other ranks' contributions arrived; p is the
// loss.
enum class Estimator : uint8_t {
  stratified = 0,  // own/N + (N-1)/N * mean of the received: unbiased for fixed contributions, if all links lose alike
  count = 1,       // (own + received) / (1 + R): biased unless all ranks share one expectation
  // For tests and simulations: each shows what fails without the rules of the two above.
  count_all = 2,         // as count, but the owner's own contribution can be missing too
  horvitz_thompson = 3,  // (own + received / (1 - p)) / N: needs p, and its variance grows with the square of the values
  zero_fill = 4,         // (own + received) / N: shrinks
};

// Treatment of a range for which no other rank's contribution arrived.
enum class OnEmpty : uint8_t {
  automatic = 0,  // own in an all-reduce, hold in the sharded step
  hold = 1,       // the range is not updated in this step; sharded step only
  own = 2,        // use this rank's values alone
  zero = 3,
  fail = 4,  // the operation ends with `late`
};

struct DeliveryOptions {
  // Share of a stream that may stay missing without repair; 0: repair everything, 1: never repair.
  double loss_budget = 0.05;
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::automatic;
  std::chrono::microseconds deadline{0};               // of a phase; 0: learnt from earlier operations
  std::chrono::microseconds deadline_max{30'000'000};  // no phase takes longer
  // If rank 0 loses more than this over 20 operations, the group's lossy calls are reliable from then on, and report it in
  // DeliveryReport::note.
  double loss_off = 0.40;
  // Memory for contributions that wait for a phase to close. A call that needs more is refused.
  uint64_t staging_bytes_max = 256u << 20;

  // "loss_budget=0.2,estimator=count,on_empty=own,deadline=20ms,deadline_max=30s,loss_off=0.4,staging=256M"; "" = defaults.
  // Times need a unit (us, ms, s). Bytes may have one (K, M, G: powers of 1024). invalid (bad_option): names the wrong part.
  UNISONO_EXPORT static Result<DeliveryOptions> parse(std::string_view text);
  // The text that parse() reads; defaults are left out.
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): names the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const DeliveryOptions&, const DeliveryOptions&) = default;
};

// How Group::reduce_shards and gather_shards cut a tensor: one shard per rank, its owner; each shard into ranges, one per
// datagram.
struct ShardLayout {
  uint64_t elements = 0;  // elements of the tensor
  uint32_t world = 1;
  uint64_t shard_elements = 0;  // the last shards may have fewer, or none
  uint32_t range_elements = 0;  // the last range of a shard may have fewer
  uint64_t begin(uint32_t rank) const { return rank * shard_elements < elements ? rank * shard_elements : elements; }
  uint64_t end(uint32_t rank) const { return begin(rank + 1); }
  uint64_t count(uint32_t rank) const { return end(rank) - begin(rank); }
  uint32_t ranges(uint32_t rank) const {
    return range_elements == 0 ? 0 : static_cast<uint32_t>((count(rank) + range_elements - 1) / range_elements);
  }
  friend bool operator==(const ShardLayout&, const ShardLayout&) = default;
};

// Delivery of one operation at this rank that asked for lossy or automatic delivery. A range is the content of one datagram.
struct DeliveryReport {
  // lossy; or reliable: everything was repaired until complete, or no datagrams were used and neither phase ran.
  Delivery used = Delivery::lossy;
  // The reason: rank 0's decision with its numbers, or what prevents an automatic call from being lossy. Empty before any
  // decision.
  std::string note{};
  // How a stream of datagrams from one rank ended. tail: shortly after its last ones; soft: late after its first one; hard: at
  // the phase's deadline; silent: nothing of it had arrived by then; lost: the link is gone.
  enum class End : uint8_t { none = 0, complete, tail, soft, hard, silent, lost };
  struct Stream {
    uint64_t expected = 0, missing = 0;  // ranges; missing: not there when the phase closed
    uint64_t repaired = 0;               // ranges that arrived only after a repeated request
    uint64_t duplicate = 0, late = 0;    // datagrams
    End end = End::none;
    bool present = false;                    // anything from the sender arrived during the operation, even for another one
    std::vector<uint32_t> missing_ranges{};  // in ascending order
    // Delivered share of the ranges, counting first transmissions only.
    double share() const {
      return expected == 0 ? 1 : 1 - static_cast<double>(missing + repaired) / static_cast<double>(expected);
    }
  };
  struct Phase {
    bool ran = false;
    bool learning = false;  // too few operations of this size so far: the phase repairs everything
    int64_t duration_us = 0, soft_us = 0, hard_us = 0;
    std::vector<Stream> streams{};  // by rank; this rank's entry is empty
  };
  Phase contribute{}, result{};
  std::vector<uint16_t> contributors{};  // per range of the own shard: ranks that contributed, including this one
  // Ranges of the own shard with all, some, and none of the other ranks' contributions.
  uint64_t full_ranges = 0, short_ranges = 0, empty_ranges = 0;
  double effective_contributors = 0;  // N without loss: 1 / mean of (1/N^2 + ((N-1)/N)^2 / R)
  uint64_t stale_ranges = 0;          // missing when the result phase closed; output keeps its old values there
  uint32_t behind = 0;                // operations that the other ranks were ahead, if this one was aborted for that
  Status outcome{};                   // ok; or late: a deadline cut a stream short. Names ranks and bytes

  // Largest over smallest delivered share of all senders. Above 1.1, sums lean towards well-connected ranks.
  UNISONO_EXPORT double share_ratio() const;
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono

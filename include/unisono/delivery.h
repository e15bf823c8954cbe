// Lossy delivery: what a collective makes of datagrams that do not arrive. Opt-in; needs links of the transport "udp".
//
// Method: "Distributed Training under Packet Loss", arXiv 2507.07114; the estimator, the deadlines and the drift formulae are
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

// automatic: reliable until the links are seen to lose and to be late, and again when they no longer are: lossy when over 64
// operations 95 % of all phases took up to more than 1.5 times their median and a share in [0.1 %, loss_budget] was lost,
// reliable when over 256 less than 0.05 % was. Rank 0 decides for all, by what it receives. Reliable, too, where links carry no
// datagrams or the call cannot be lossy.
enum class Delivery : uint8_t { reliable = 0, lossy = 1, automatic = 2 };

// What stands for the contributions that are missing, by range of elements. R of the N-1 others have arrived, p is the loss.
enum class Estimator : uint8_t {
  stratified = 0,  // own/N + (N-1)/N * mean of the received: unbiased for fixed contributions, if all links lose alike
  count = 1,       // (own + received) / (1 + R): biased unless all ranks share one expectation
  // For tests and simulations: each shows what goes wrong without the rules of the two above.
  count_all = 2,         // as count, and the owner's own contribution can be missing too
  horvitz_thompson = 3,  // (own + received / (1 - p)) / N: needs p, and its variance grows with the square of the values
  zero_fill = 4,         // (own + received) / N: shrinks
};

// What becomes of a range of which nothing arrived from others.
enum class OnEmpty : uint8_t {
  automatic = 0,  // own in an all-reduce, hold in the sharded step
  hold = 1,       // no update of it in this step; sharded step only
  own = 2,        // this rank's values alone
  zero = 3,
  fail = 4,  // the operation ends with `late`
};

struct DeliveryOptions {
  double loss_budget =
      0.05;  // missing fraction of a stream that is accepted without repair; 0 = repair everything, 1 = never repair
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::automatic;
  std::chrono::microseconds deadline{0};               // of a phase; 0 = learnt
  std::chrono::microseconds deadline_max{30'000'000};  // no phase takes longer
  double loss_off = 0.40;  // above this over 20 operations at rank 0: lossy calls of the group are reliable from then on, and
                           // say so (DeliveryReport::note)
  uint64_t staging_bytes_max =
      256u << 20;  // of contributions that wait for a phase to close; a call that needs more is refused

  // "loss_budget=0.2,estimator=count,on_empty=own,deadline=20ms,deadline_max=30s,loss_off=0.4,staging=256M"; "" = defaults.
  // Times have a unit (us, ms, s), bytes may have one (K, M, G: powers of 1024). invalid (bad_option): the part that is wrong.
  UNISONO_EXPORT static Result<DeliveryOptions> parse(std::string_view text);
  // What parse() reads; what has its default is left out.
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): names the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const DeliveryOptions&, const DeliveryOptions&) = default;
};

// How a tensor is cut for Group::reduce_shards and gather_shards: one shard per rank, which owns it; a shard into ranges, one
// per datagram.
struct ShardLayout {
  uint64_t elements = 0;  // of the tensor
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

// What became of the datagrams of one operation at this rank that was asked to be lossy or automatic. Ranges are what a
// datagram carries.
struct DeliveryReport {
  // lossy, or reliable: all was repaired until complete, or there were no datagrams at all and neither phase ran.
  Delivery used = Delivery::lossy;
  // Why it is that: what rank 0 decided, with the numbers, or what keeps an automatic call from being lossy. Empty as long as
  // nothing was decided.
  std::string note{};
  // How a stream of datagrams from one rank ended. tail: a little after its last ones; soft: late after its first one; hard: at
  // the phase's deadline; silent: nothing of it was heard by then; lost: the link is gone.
  enum class End : uint8_t { none = 0, complete, tail, soft, hard, silent, lost };
  struct Stream {
    uint64_t expected = 0, missing = 0;  // ranges; missing when its phase closed
    uint64_t repaired = 0;               // ranges that came only when asked for again
    uint64_t duplicate = 0, late = 0;    // datagrams
    End end = End::none;
    bool present = false;  // something of the sender came while the operation ran, if only of another operation
    std::vector<uint32_t> missing_ranges{};  // which they were, ascending
    // Of what was sent the first time.
    double share() const {
      return expected == 0 ? 1 : 1 - static_cast<double>(missing + repaired) / static_cast<double>(expected);
    }
  };
  struct Phase {
    bool ran = false;
    bool learning = false;  // too few operations of this size so far: everything is repaired
    int64_t duration_us = 0, soft_us = 0, hard_us = 0;
    std::vector<Stream> streams{};  // by rank; this rank's is empty
  };
  Phase contribute{}, result{};
  std::vector<uint16_t> contributors{};  // by range of the own shard: of how many ranks something came, this one included
  uint64_t full_ranges = 0, short_ranges = 0,
           empty_ranges = 0;          // of the own shard: with all, some, and none of the others' contributions
  double effective_contributors = 0;  // N without loss: 1 / mean of (1/N^2 + ((N-1)/N)^2 / R)
  uint64_t stale_ranges = 0;          // missing when the result phase closed: not written
  uint32_t behind = 0;                // operations that the others were ahead, if this one was given up for it
  Status outcome{};                   // ok, or late: a deadline cut a stream short; names ranks and bytes

  // Largest over smallest share delivered per sender: above 1.1 sums lean towards those that are well connected.
  UNISONO_EXPORT double share_ratio() const;
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono

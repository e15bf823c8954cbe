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

// automatic: rank 0 chooses for all ranks, by the loss and the phase durations that it measures. It begins with reliable.
// - It chooses lossy if, over 64 operations, the 95th percentile of phase durations exceeds 1.5 * median, and the loss is in
//   [0.1 %, loss_budget]. The first condition means that some phases end late.
// - It returns to reliable if the loss over 256 operations is below 0.05 %.
// - Calls that cannot be lossy, and links without datagrams, always use reliable.
enum class Delivery : uint8_t { reliable = 0, lossy = 1, automatic = 2 };

// How the sum of a range of elements is estimated if contributions are missing. The group has N ranks. R contributions of other
// ranks arrived: the `received`. `own` is this rank's contribution. p is the loss.
enum class Estimator : uint8_t {
  stratified = 0,  // own/N + (N-1)/N * mean(received): unbiased for fixed contributions if all links have equal loss
  count = 1,       // (own + received) / (1 + R): unbiased only if all ranks have the same expectation
  // The estimators below are for tests and simulations: each shows the error that stratified and count avoid.
  count_all = 2,         // like count, but the owner's own contribution can be missing too
  horvitz_thompson = 3,  // (own + received / (1 - p)) / N: needs p, and its variance grows with the square of the values
  zero_fill = 4,         // (own + received) / N: biased towards zero
};

// The treatment of a range for which no other rank's contribution arrived.
enum class OnEmpty : uint8_t {
  automatic = 0,  // `own` in an all-reduce, `hold` in the sharded step
  hold = 1,       // the range is not updated in this step; sharded step only
  own = 2,        // use this rank's values alone
  zero = 3,
  fail = 4,  // the operation ends with `late`
};

struct DeliveryOptions {
  // Share of a stream's datagrams that may be lost without retransmission; 0: retransmit all, 1: retransmit none.
  double loss_budget = 0.05;
  Estimator estimator = Estimator::stratified;
  OnEmpty on_empty = OnEmpty::automatic;
  std::chrono::microseconds deadline{0};               // deadline of a phase; 0: learnt from earlier operations
  std::chrono::microseconds deadline_max{30'000'000};  // upper limit of a phase's duration
  // If rank 0 measures a larger loss than this share over 20 operations, lossy delivery is switched off. Later lossy calls of
  // the group are reliable, and DeliveryReport::note says so.
  double loss_off = 0.40;
  // Limit on memory for contributions that wait for a phase to close. A call that needs more is refused.
  uint64_t staging_bytes_max = 256u << 20;

  // Parses "loss_budget=0.2,estimator=count,on_empty=own,deadline=20ms,deadline_max=30s,loss_off=0.4,staging=256M". Options
  // that are left out keep their defaults. A time needs a unit (us, ms, s). A size may have one (K, M, G: powers of 1024).
  // Returns invalid (bad_option) for any other text; the message names the wrong part.
  UNISONO_EXPORT static Result<DeliveryOptions> parse(std::string_view text);
  // Returns text for parse(), without options that have default values.
  UNISONO_EXPORT std::string to_string() const;
  // Returns ok, or invalid (bad_option) with the name of the field that is out of range.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const DeliveryOptions&, const DeliveryOptions&) = default;
};

// How Group::reduce_shards and gather_shards cut a tensor. Each rank owns one shard. Each shard consists of ranges, one per
// datagram.
struct ShardLayout {
  uint64_t elements = 0;  // elements of the tensor
  uint32_t world = 1;
  uint64_t shard_elements = 0;  // elements per shard; the last shards may have fewer, or none
  uint32_t range_elements = 0;  // elements per range; the last range of a shard may have fewer
  uint64_t begin(uint32_t rank) const { return rank * shard_elements < elements ? rank * shard_elements : elements; }
  uint64_t end(uint32_t rank) const { return begin(rank + 1); }
  uint64_t count(uint32_t rank) const { return end(rank) - begin(rank); }
  uint32_t ranges(uint32_t rank) const {
    return range_elements == 0 ? 0 : static_cast<uint32_t>((count(rank) + range_elements - 1) / range_elements);
  }
  friend bool operator==(const ShardLayout&, const ShardLayout&) = default;
};

// How the data of one operation arrived at this rank, with Delivery::lossy or automatic. A range is the content of one
// datagram.
struct DeliveryReport {
  // The delivery that was used. reliable: missing datagrams were sent again until all arrived, or no datagrams were used.
  Delivery used = Delivery::lossy;
  // Why `used` was chosen: rank 0's decision with its numbers, or the obstacle that keeps an automatic call from being lossy.
  // Empty before the first decision.
  std::string note{};
  // How a stream of datagrams from one rank ended.
  // - complete: everything arrived.
  // - tail: this rank closed it shortly after one of its last datagrams arrived.
  // - soft: this rank closed it some time after its first datagram.
  // - hard: this rank closed it at the phase's deadline.
  // - silent: no datagram arrived before the deadline.
  // - lost: the link closed.
  enum class End : uint8_t { none = 0, complete, tail, soft, hard, silent, lost };
  struct Stream {
    uint64_t expected = 0, missing = 0;  // number of ranges; missing: not received when the phase closed
    uint64_t repaired = 0;               // number of ranges that arrived only after a repeated request
    uint64_t duplicate = 0, late = 0;    // datagrams that came twice; datagrams that came after the phase closed
    End end = End::none;
    // true: a datagram of the sender arrived during this operation. It may belong to another operation.
    bool present = false;
    std::vector<uint32_t> missing_ranges{};  // indices of missing ranges, in ascending order
    // Share of the ranges that arrived by their first transmission.
    double share() const {
      return expected == 0 ? 1 : 1 - static_cast<double>(missing + repaired) / static_cast<double>(expected);
    }
  };
  struct Phase {
    bool ran = false;
    bool learning = false;  // no deadline yet: too few operations of this size. The phase retransmits everything
    int64_t duration_us = 0, soft_us = 0, hard_us = 0;
    std::vector<Stream> streams{};  // indexed by rank; this rank's entry is empty
  };
  Phase contribute{}, result{};
  std::vector<uint16_t> contributors{};  // per range of the own shard: number of contributing ranks, including this one
  // Numbers of ranges of this rank's shard that got contributions of all, of some, and of none of the other ranks.
  uint64_t full_ranges = 0, short_ranges = 0, empty_ranges = 0;
  double effective_contributors = 0;  // 1 / mean over ranges of (1/N^2 + ((N-1)/N)^2 / R); N without loss
  uint64_t stale_ranges = 0;          // ranges missing when the result phase closed; the output keeps its old values there
  uint32_t behind = 0;                // if not 0: the other ranks were this many operations ahead, so this one was aborted
  Status outcome{};                   // ok; or late: a deadline ended a stream early. The message names ranks and bytes

  // The largest share() among the senders of contributions, divided by the smallest. Above 1.1, sums are biased towards ranks
  // with good links.
  UNISONO_EXPORT double share_ratio() const;
  UNISONO_EXPORT std::string to_string() const;
};

}  // namespace unisono

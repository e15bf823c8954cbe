// Rebuilds shards after ranks were lost: values come from the newest replicas, optimizer state from backups, and the shards are
// cut anew.
//
// Nothing here communicates. The caller runs two kinds of reliable collectives. An all-gather of versions() of each lost shard
// tells every rank which rank speaks for which range. A sum over the survivors, for the values and for each number of optimizer
// state, collects them. Exactly one rank adds a value that is not 0, so the sum is exact (except that -0 becomes 0). Then call
// ShardedState::rebuild(). Rule: docs/design/methods/packet_loss.md, "The sharded step".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// A surviving rank's versions of one lost shard.
struct ReplicaVersions {
  Rank rank = 0;
  std::span<const uint32_t> versions{};  // by range
};
struct ShardSpeakers {
  std::vector<Rank> by_range;  // rank with the newest values; the first given one if there are several
  uint32_t age_max = 0;        // age of those values at the given step
  uint64_t stale_ranges = 0;   // ranges whose last values are lost with their owner
  friend bool operator==(const ShardSpeakers&, const ShardSpeakers&) = default;
};
// invalid: there is no replica, or they differ in the number of ranges.
Result<ShardSpeakers> newest_replicas(std::span<const ReplicaVersions> replicas, uint32_t step);

// The optimizer state of one shard, which its owner regularly sends to another rank.
struct ShardBackup {
  Rank owner = 0;
  uint32_t step = 0;
  std::vector<std::vector<float>> states{};
};
Bytes encode_backup(ShardedState& state);
// geometry: the former owner's. corrupt: truncated, changed, or not a backup. invalid: of another geometry. Allocates at most
// as much as there are bytes.
Result<ShardBackup> decode_backup(ByteView bytes, const RangeGeometry& geometry);

// A lost shard from one survivor's view. Ranks are those before the loss.
struct LostShard {
  Rank owner = 0;
  std::span<const Rank> speakers{};     // by range: ShardSpeakers
  const ShardBackup* backup = nullptr;  // this rank's, if it is used; set on at most one rank. Without one, the state starts
                                        // at zero, which the caller reports
};
// Computes this rank's share of the sum: its own shard (exact fp32, not encoded) and the ranges of lost shards that it speaks
// for; 0 elsewhere. share has as many elements as the tensor. invalid: sizes or numbers of speakers do not match.
Status own_share_of_values(const ShardedState& state, std::span<const LostShard> lost, std::span<float> share);
// The same for the optimizer's state `index`.
Status own_share_of_state(ShardedState& state, uint32_t index, std::span<const LostShard> lost, std::span<float> share);

}  // namespace unisono

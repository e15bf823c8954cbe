// Rebuilds shards after ranks were lost. The values come from the newest replicas, and the optimizer state comes from backups.
// Then the tensor is divided into shards for the new group. docs/design/methods/packet_loss.md, "The sharded step", describes
// the rules.
//
// This code does not communicate. The caller runs reliable collectives:
// - For each lost shard, it gathers versions() from all ranks. They show which rank has the newest values of each range (the
//   elements of one datagram). This rank is called the source of the range.
// - It sums what the survivors have of the values and of each optimizer state, with all-reduces. For each element, at most one
//   rank adds a number that is not 0, so the sums are exact (except that -0 becomes 0).
// - It calls ShardedState::rebuild().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// Which versions of a lost shard's ranges one surviving rank has.
struct ReplicaVersions {
  Rank rank = 0;
  std::span<const uint32_t> versions{};  // for each range: the step that produced its values
};
struct NewestReplicas {
  // For each range: the rank that has the newest values. If several ranks have them, it is the first of these ranks.
  std::vector<Rank> by_range;
  uint32_t age_max = 0;       // age, at the given step, of the oldest of these values
  uint64_t stale_ranges = 0;  // how many ranges have lost their newest version together with the owner
  friend bool operator==(const NewestReplicas&, const NewestReplicas&) = default;
};
// Returns invalid if there is no replica, or if the replicas have different numbers of ranges.
Result<NewestReplicas> newest_replicas(std::span<const ReplicaVersions> replicas, uint32_t step);

// The optimizer state of one shard. The owner of the shard regularly sends it to another rank.
struct ShardBackup {
  Rank owner = 0;
  uint32_t step = 0;
  std::vector<std::vector<float>> states{};
};
Bytes encode_backup(ShardedState& state);
// `geometry` must be the geometry of the owner's group when the backup was made. Returns invalid if the bytes belong to another
// geometry. Returns corrupt if they are truncated, changed, or no backup. Never allocates more than bytes.size().
Result<ShardBackup> decode_backup(ByteView bytes, const RangeGeometry& geometry);

// The knowledge of one survivor about a lost shard. Ranks have the numbers that they had before the loss.
struct LostShard {
  Rank owner = 0;
  std::span<const Rank> sources{};  // for each range: the rank that adds its values (NewestReplicas::by_range)
  // The backup of the shard that this rank has, or null. At most one rank has a backup. If no rank has one, the optimizer state
  // of the shard becomes zero.
  const ShardBackup* backup = nullptr;
};
// Fills `share` with what this rank adds to the sum of the values: the exact fp32 values of its own shard, the values of those
// lost ranges whose source it is, and 0 elsewhere. `share` must be as large as the tensor. Returns invalid if sizes or numbers
// of sources do not match.
Status own_share_of_values(const ShardedState& state, std::span<const LostShard> lost, std::span<float> share);
// Fills `share` with what this rank adds to the sum of the optimizer state `index`: the state of its own shard, the states of
// the backups in `lost`, and 0 elsewhere.
Status own_share_of_state(ShardedState& state, uint32_t index, std::span<const LostShard> lost, std::span<float> share);

}  // namespace unisono

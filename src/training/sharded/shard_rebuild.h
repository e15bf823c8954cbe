// When ranks are lost: their shards' values from the newest replicas, their optimizers' state from backups, and all of it cut
// anew.
//
// Nothing here communicates. A caller has two kinds of reliable collectives to make: an all-gather of versions() of each lost
// shard, after which every rank knows who speaks for which range; and a sum over the survivors, for values and for each number
// of optimizer state, to which exactly one rank adds what is not 0, so that it is exact (but that -0 becomes 0). Then
// ShardedState::rebuild(). Rule: docs/design/methods/packet_loss.md, "The sharded step".
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "training/sharded/sharded_state.h"
#include "unisono/status.h"

namespace unisono {

// What a rank that is still there has of one lost shard.
struct ReplicaVersions {
  Rank rank = 0;
  std::span<const uint32_t> versions{};  // by range
};
struct ShardSpeakers {
  std::vector<Rank> by_range;  // who has the newest values; of several, the first that was given
  uint32_t age_max = 0;        // of those, at the step that was given
  uint64_t stale_ranges = 0;   // the owner's last values of them are lost
  friend bool operator==(const ShardSpeakers&, const ShardSpeakers&) = default;
};
// invalid: there is no replica, or they have different numbers of ranges.
Result<ShardSpeakers> newest_replicas(std::span<const ReplicaVersions> replicas, uint32_t step);

// The optimizer's state of one shard, which its owner sends to another rank now and then.
struct ShardBackup {
  Rank owner = 0;
  uint32_t step = 0;
  std::vector<std::vector<float>> states{};
};
Bytes encode_backup(ShardedState& state);
// geometry: which the owner had. corrupt: cut, changed, or nothing of the kind; invalid: of another geometry. Allocates no more
// than there are bytes.
Result<ShardBackup> decode_backup(ByteView bytes, const RangeGeometry& geometry);

// As one of the survivors has it. Ranks in it are those before the loss.
struct LostShard {
  Rank owner = 0;
  std::span<const Rank> speakers{};     // by range: ShardSpeakers
  const ShardBackup* backup = nullptr;  // this rank's, if it is to be used; of at most one rank. Without any the state begins
                                        // with zeros, which is to be reported
};
// What this rank adds to the sum: its own shard (exactly, not as it travels), and of lost ones the ranges that it speaks for;
// else 0. As many as the tensor has elements, which is checked, as are the speakers' numbers: invalid.
Status own_share_of_values(const ShardedState& state, std::span<const LostShard> lost, std::span<float> share);
// Likewise, of the optimizer's state `index`.
Status own_share_of_state(ShardedState& state, uint32_t index, std::span<const LostShard> lost, std::span<float> share);

}  // namespace unisono

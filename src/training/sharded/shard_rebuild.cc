#include "training/sharded/shard_rebuild.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono {
namespace {

constexpr std::array<char, 4> magic{'U', 'S', 'H', 'B'};
constexpr uint32_t version = 1;

Status corrupt(const std::string& why) { return {Code::corrupt, "a backup of an optimizer's state " + why}; }
Status invalid(const std::string& why) { return {Code::invalid, "rebuilding shards: " + why}; }

Status check_share(const ShardedState& state, std::span<const LostShard> lost, std::span<float> share) {
  if (share.size() != state.parameters().size())
    return invalid(concat("the buffer has ", share.size(), " values, the tensor ", state.parameters().size()));
  for (const auto& shard : lost) {
    if (shard.owner >= state.geometry().cut().world || shard.owner == state.self())
      return invalid(concat("rank ", shard.owner, " cannot be lost: it is this rank, or no rank of the group"));
  }
  return {};
}

std::span<float> part(std::span<float> all, const ElementSpan& extent) { return all.subspan(extent.begin, extent.count()); }

}  // namespace

Result<NewestReplicas> newest_replicas(std::span<const ReplicaVersions> replicas, uint32_t step) {
  if (replicas.empty()) return invalid("no rank has a replica");
  NewestReplicas found;
  std::vector<uint32_t> newest(replicas[0].versions.begin(), replicas[0].versions.end());
  found.by_range.assign(newest.size(), replicas[0].rank);
  for (const auto& replica : replicas) {
    if (replica.versions.size() != newest.size()) {
      return invalid(concat("rank ", replica.rank, " has versions of ", replica.versions.size(), " ranges, rank ",
                            replicas[0].rank, " of ", newest.size()));
    }
    for (size_t range = 0; range < newest.size(); ++range) {
      if (replica.versions[range] <= newest[range]) continue;
      newest[range] = replica.versions[range];
      found.by_range[range] = replica.rank;
    }
  }
  for (const uint32_t one : newest) {
    if (one >= step) continue;
    ++found.stale_ranges;
    found.age_max = std::max(found.age_max, step - one);
  }
  return found;
}

Bytes encode_backup(ShardedState& state) {
  ByteWriter writer;
  const auto count = state.optimizer().state_count();
  writer.write(magic)
      .write(version)
      .write(state.self())
      .write(state.step())
      .write(count)
      .write(static_cast<uint64_t>(state.own_values().size()));
  for (uint32_t i = 0; i < count; ++i) {
    for (const float value : state.optimizer().state(i)) writer.write(value);
  }
  writer.write(hash_of(writer.view()));
  return std::move(writer).take();
}

Result<ShardBackup> decode_backup(ByteView bytes, const RangeGeometry& geometry) {
  if (bytes.size() < sizeof(uint64_t)) return corrupt(concat("has only ", bytes.size(), " bytes"));
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader reader(body), end(bytes.last(sizeof(uint64_t)));
  if (reader.read<std::array<char, 4>>() != magic) return corrupt("has a wrong magic number");
  if (const auto found = reader.read<uint32_t>(); reader.ok() && found != version)
    return corrupt(concat("has version ", found, "; this build reads version ", version));
  if (end.read<uint64_t>() != hash_of(body)) return corrupt("is truncated or damaged");
  ShardBackup backup;
  backup.owner = reader.read<Rank>();
  backup.step = reader.read<uint32_t>();
  const auto count = reader.read<uint32_t>();
  const auto elements = reader.read<uint64_t>();
  if (!reader.ok()) return corrupt("ends in its first fields");
  if (backup.owner >= geometry.cut().world || elements != geometry.shard(backup.owner).count()) {
    return Status(Code::invalid, concat("a backup of rank ", backup.owner, "'s shard of ", elements,
                                        " elements belongs to another group of ranks"));
  }
  // The size is checked by a division, because the product could overflow. If the shard has no elements, any number of states
  // would fit, so its backup must not have values.
  const auto left = reader.left() / sizeof(float);
  const bool fits = elements == 0 ? left == 0 : left / elements == count && left % elements == 0;
  if (!fits || reader.left() % sizeof(float) != 0)
    return corrupt(concat("has ", reader.left(), " bytes for ", count, " times ", elements, " numbers"));
  backup.states.resize(elements == 0 ? 0 : count);
  for (auto& state : backup.states) {
    state.resize(elements);
    for (float& value : state) value = reader.read<float>();
  }
  return backup;
}

Status own_share_of_values(const ShardedState& state, std::span<const LostShard> lost, std::span<float> share) {
  if (auto status = check_share(state, lost, share); !status.ok()) return status;
  const auto& geometry = state.geometry();
  std::fill(share.begin(), share.end(), 0.0f);
  std::copy(state.own_values().begin(), state.own_values().end(), part(share, geometry.shard(state.self())).begin());
  for (const auto& shard : lost) {
    if (shard.sources.size() != geometry.ranges(shard.owner))
      return invalid(concat("sources for ", shard.sources.size(), " ranges of rank ", shard.owner, ", which had ",
                            geometry.ranges(shard.owner)));
    for (uint32_t range = 0; range < shard.sources.size(); ++range) {
      if (shard.sources[range] != state.self()) continue;
      const auto extent = geometry.range(shard.owner, range);
      std::copy_n(state.parameters().begin() + static_cast<std::ptrdiff_t>(extent.begin), extent.count(),
                  part(share, extent).begin());
    }
  }
  return {};
}

Status own_share_of_state(ShardedState& state, uint32_t index, std::span<const LostShard> lost, std::span<float> share) {
  if (auto status = check_share(state, lost, share); !status.ok()) return status;
  if (index >= state.optimizer().state_count()) return invalid(concat("the optimizer has no state ", index));
  const auto& geometry = state.geometry();
  std::fill(share.begin(), share.end(), 0.0f);
  const auto own = state.optimizer().state(index);
  std::copy(own.begin(), own.end(), part(share, geometry.shard(state.self())).begin());
  for (const auto& shard : lost) {
    if (shard.backup == nullptr) continue;
    const auto to = part(share, geometry.shard(shard.owner));
    if (to.empty()) continue;
    if (shard.backup->owner != shard.owner || index >= shard.backup->states.size() ||
        shard.backup->states[index].size() != to.size()) {
      return invalid(concat("the backup is not that of rank ", shard.owner, "'s optimizer"));
    }
    std::copy(shard.backup->states[index].begin(), shard.backup->states[index].end(), to.begin());
  }
  return {};
}

}  // namespace unisono

// The handshake of the ranks. It gives all ranks the same parameters at the start, and continues the training after ranks were
// lost or have joined.
#include <algorithm>
#include <numeric>
#include <string>

#include "base/concat.h"
#include "base/random.h"
#include "training/settings/same_settings.h"
#include "training/sharded/sharded_stepper.h"

namespace unisono::internal {

// The data that each rank sends to all others in the handshake. All fields are integers, so a codec cannot change them.
struct ShardedStepper::RankState {
  uint64_t elements = 0;
  uint64_t was_member = 0, step = 0, rank = 0, world = 0,
           datagram_bytes = 0;  // was_member is 1 if the rank was in the former group. The other fields describe that group.
  uint64_t backup_of = 0, backup_step = 0;  // backup_of is 1 + the rank whose backup this rank has; 0: this rank has no backup.
};

namespace {

constexpr uint32_t any_datagram = 1472;  // If nothing is sent by datagrams, the geometry is computed for this datagram size.
constexpr uint32_t samples_per_shard = 256, updates_min = 10, updates_max = 1000;

Status mismatch(const std::string& what) { return {Code::invalid, "config_mismatch: " + what}; }

}  // namespace

Result<std::unique_ptr<ShardedStepper>> ShardedStepper::make(const Group& group, std::span<const float> parameters,
                                                             std::unique_ptr<ShardOptimizer> optimizer,
                                                             const ShardedOptions& options) {
  if (auto status = options.check(); !status.ok()) return status;
  if (optimizer == nullptr) return Status(Code::invalid, "sharded step: no optimizer");
  if (parameters.empty()) return Status(Code::invalid, "sharded step: no parameters");
  std::unique_ptr<ShardedStepper> made(new ShardedStepper(options));
  if (auto status = made->handshake(group, parameters, std::move(optimizer)); !status.ok()) return status;
  return made;
}

Result<ShardedResumed> ShardedStepper::resume(const Group& group) {
  if (auto status = handshake(group, {}, nullptr); !status.ok()) return status;
  return resumed_;
}

Status ShardedStepper::check_same_options(Group& group, const ShardOptimizer& optimizer, uint64_t elements) const {
  const auto text = options_.to_string();
  const Setting settings[] = {{"parameters", {concat(elements, " parameters")}},
                              {"options of the sharded step", {text.empty() ? "the defaults" : text}},
                              {"codecs of gradients", {Codec::of(options_.gradients).to_string()}},
                              {"codecs of values", {Codec::of(options_.values).to_string()}},
                              {"optimizers", {concat(optimizer.state_count(), " states per parameter")}}};
  return check_same_settings(group, settings, options_.timeout);
}

Result<std::vector<ShardedStepper::RankState>> ShardedStepper::exchange_states(Group& group, const ShardOptimizer& optimizer,
                                                                               uint64_t elements) const {
  if (auto status = check_same_options(group, optimizer, elements); !status.ok()) return status;
  constexpr size_t numbers = sizeof(RankState) / sizeof(uint64_t);
  RankState own{.elements = elements};
  if (state_) {
    const auto& cut = state_->geometry().cut();
    own.was_member = 1, own.step = state_->step(), own.rank = rank_, own.world = world_,
    own.datagram_bytes = cut.datagram_bytes;
  }
  if (backup_) own.backup_of = backup_->owner + uint64_t{1}, own.backup_step = backup_->step;
  std::vector<RankState> rank_states(group.world_size());
  const auto mine = std::span(reinterpret_cast<const uint64_t*>(&own), numbers);
  const auto all = std::span(reinterpret_cast<uint64_t*>(rank_states.data()), numbers * rank_states.size());
  if (auto done = group.all_gather(ConstTensor(mine), Tensor(all), {}, {.timeout = options_.timeout, .codec = Codec()});
      !done.ok())
    return done.status();
  const RankState* former = nullptr;
  for (Rank rank = 0; rank < rank_states.size(); ++rank) {
    const auto& other = rank_states[rank];
    if (other.was_member == 0) continue;
    if (former == nullptr) former = &other;
    if (other.world != former->world || other.datagram_bytes != former->datagram_bytes || other.rank >= other.world) {
      return mismatch(
          concat("rank ", rank, " was rank ", other.rank, " of ", other.world, ", others were in a group of ", former->world));
    }
  }
  return rank_states;
}

static uint32_t shard_unit_of(const ShardedOptions& options) {
  const auto block = [](const StepCodec& codec) {
    return RangeGeometry::block_elements(wire_codec(codec, DType::f32, DType::f32, false));
  };
  // Both block sizes are powers of two. Therefore the larger one is a multiple of the other.
  return std::max(block(options.gradients), block(options.values));
}

static Result<RangeGeometry> geometry_of(const ShardedOptions& options, uint64_t elements, uint32_t world,
                                         uint32_t datagram_bytes) {
  return RangeGeometry::make({.elements = elements,
                              .world = world,
                              .datagram_bytes = datagram_bytes,
                              .codec = wire_codec(options.values, DType::f32, DType::f32, false),
                              .shard_unit = shard_unit_of(options)});
}

Status ShardedStepper::handshake(const Group& group, std::span<const float> parameters,
                                 std::unique_ptr<ShardOptimizer> optimizer) {
  std::vector<uint32_t> all_ranks(group.world_size());
  std::iota(all_ranks.begin(), all_ranks.end(), 0u);
  auto own = Group(group).split(all_ranks);
  if (!own.ok()) return own.status();
  const auto datagram_bytes = own->datagram_bytes();
  if (options_.delivery == Delivery::lossy && own->world_size() > 1 && datagram_bytes == 0) {
    return {Code::unsupported, "sharded step: delivery=lossy needs links of the transport \"udp\" between all ranks"};
  }
  const uint64_t elements = state_ ? state_->parameters().size() : parameters.size();
  const auto geometry = geometry_of(options_, elements, own->world_size(), datagram_bytes == 0 ? any_datagram : datagram_bytes);
  if (!geometry.ok()) return geometry.status();
  const auto rank_states = exchange_states(*own, state_ ? state_->optimizer() : *optimizer, elements);
  if (!rank_states.ok()) return rank_states.status();
  const bool is_first = std::ranges::none_of(*rank_states, [](const RankState& one) { return one.was_member != 0; });
  auto status = is_first ? broadcast_parameters(*own, parameters, std::move(optimizer), *geometry)
                         : continue_training(*own, *rank_states, std::move(optimizer), *geometry);
  if (!status.ok()) return status;
  group_ = std::move(*own);
  world_ = group_->world_size();
  rank_ = group_->rank();
  return reset_group_state();
}

Status ShardedStepper::broadcast_parameters(Group& group, std::span<const float> parameters,
                                            std::unique_ptr<ShardOptimizer> optimizer, const RangeGeometry& geometry) {
  std::vector<float> values(parameters.begin(), parameters.end());
  if (auto done = group.broadcast(Tensor(std::span(values)), 0, {.timeout = options_.timeout}); !done.ok())
    return done.status();
  auto state = ShardedState::make(geometry, group.rank(), values, std::move(optimizer), {.stale_max = options_.stale_max});
  if (!state.ok()) return state.status();
  state_.emplace(std::move(*state));
  resumed_ = {};
  return {};
}

// Finds for each lost shard which ranks have the newest values. Ranks have the numbers that they had in the former group.
Result<std::vector<NewestReplicas>> ShardedStepper::find_newest_replicas(Group& group,
                                                                         const std::vector<RankState>& rank_states,
                                                                         std::span<const Rank> lost,
                                                                         const RangeGeometry& before, uint32_t step) const {
  std::vector<NewestReplicas> found;
  for (const auto owner : lost) {
    const auto ranges = before.ranges(owner);
    std::vector<uint32_t> own(ranges), all(size_t{ranges} * rank_states.size());
    if (state_) std::ranges::copy(state_->versions(owner), own.begin());
    if (ranges > 0) {
      if (auto done = group.all_gather(ConstTensor(std::span<const uint32_t>(own)), Tensor(std::span(all)), {},
                                       {.timeout = options_.timeout, .codec = Codec()});
          !done.ok())
        return done.status();
    }
    std::vector<ReplicaVersions> replicas;
    for (size_t i = 0; i < rank_states.size(); ++i) {
      if (rank_states[i].was_member != 0)
        replicas.push_back(
            {.rank = static_cast<Rank>(rank_states[i].rank), .versions = std::span(all).subspan(i * ranges, ranges)});
    }
    auto sources = newest_replicas(replicas, step);
    if (!sources.ok()) return sources.status();
    found.push_back(std::move(*sources));
  }
  return found;
}

Status ShardedStepper::continue_training(Group& group, const std::vector<RankState>& rank_states,
                                         std::unique_ptr<ShardOptimizer> optimizer, const RangeGeometry& geometry) {
  const auto& former = *std::ranges::find_if(rank_states, [](const RankState& one) { return one.was_member != 0; });
  const auto before =
      geometry_of(options_, former.elements, static_cast<uint32_t>(former.world), static_cast<uint32_t>(former.datagram_bytes));
  if (!before.ok()) return before.status();
  uint32_t step = 0;
  std::vector<Rank> lost;
  for (Rank rank = 0; rank < former.world; ++rank) {
    const auto it =
        std::ranges::find_if(rank_states, [&](const RankState& one) { return one.was_member != 0 && one.rank == rank; });
    if (it == rank_states.end()) lost.push_back(rank);
    else step = std::max(step, static_cast<uint32_t>(it->step));
  }
  const auto sources = find_newest_replicas(group, rank_states, lost, *before, step);
  if (!sources.ok()) return sources.status();
  ShardedResumed resumed{.step = step};
  std::vector<LostShard> shards;
  for (size_t i = 0; i < lost.size(); ++i) {
    const RankState* newest = nullptr;
    for (const auto& one : rank_states) {
      if (one.backup_of == lost[i] + uint64_t{1} && (newest == nullptr || one.backup_step > newest->backup_step)) newest = &one;
    }
    const bool is_mine = newest == &rank_states[group.rank()];
    shards.push_back({.owner = lost[i], .sources = (*sources)[i].by_range, .backup = is_mine ? &*backup_ : nullptr});
    resumed.lost.push_back(
        {.rank = lost[i],
         .ranges = before->ranges(lost[i]),
         .stale_ranges = (*sources)[i].stale_ranges,
         .age_max = (*sources)[i].age_max,
         .state_age = newest == nullptr ? -1 : static_cast<int64_t>(step) - static_cast<int64_t>(newest->backup_step)});
  }
  auto status = rebuild(group, shards, step, std::move(optimizer), geometry);
  if (status.ok()) resumed_ = std::move(resumed);
  return status;
}

// Rebuilds the state from sums over the ranks. For each element, at most one rank adds a number that is not 0.
Status ShardedStepper::rebuild(Group& group, std::span<const LostShard> shards, uint32_t step,
                               std::unique_ptr<ShardOptimizer> optimizer, const RangeGeometry& geometry) {
  const auto elements = geometry.cut().elements;
  const CallOptions reliable{.timeout = options_.timeout, .codec = Codec()};
  std::vector<float> values(elements);
  if (state_) {
    if (auto status = own_share_of_values(*state_, shards, values); !status.ok()) return status;
  }
  if (auto done = group.all_reduce(std::span(values), reliable); !done.ok()) return done.status();
  const auto count = (state_ ? state_->optimizer() : *optimizer).state_count();
  std::vector<std::vector<float>> states(count);
  for (uint32_t i = 0; i < count; ++i) {
    states[i].resize(elements);
    if (state_) {
      if (auto status = own_share_of_state(*state_, i, shards, states[i]); !status.ok()) return status;
    }
    if (auto done = group.all_reduce(std::span(states[i]), reliable); !done.ok()) return done.status();
  }
  if (!state_) {
    auto state = ShardedState::make(geometry, group.rank(), values, std::move(optimizer), {.stale_max = options_.stale_max});
    if (!state.ok()) return state.status();
    state_.emplace(std::move(*state));
  }
  return state_->rebuild(geometry, group.rank(), {.step = step, .values = values, .states = states});
}

// Resets everything that belongs to one group. In the new group, calls are counted from 0 again.
Status ShardedStepper::reset_group_state() {
  const auto& geometry = state_->geometry();
  const auto layout = group_->shard_layout(ConstTensor(std::span<const float>(state_->parameters())), options_.gradients,
                                           geometry.cut().shard_unit);
  if (!layout.ok()) return layout.status();
  gradient_range_ = layout->range_elements;
  first_step_ = state_->step();
  next_call_ = 0;
  reduced_step_ = 0;
  gradient_.assign(geometry.shard(rank_).count(), 0);
  scalars_.assign(size_t{world_} * scalar_elements, 0);
  last_squares_.assign(world_, 0);
  scalar_steps_.assign(world_, 0);
  finite_.assign(world_, 1);
  needed_.assign(world_, {});
  silent_steps_.assign(world_, 0);
  last_active_.assign(world_, std::chrono::steady_clock::now());
  reduce_hard_us_ = 0;
  const auto run = mix64(geometry.cut().elements ^ uint64_t{group_->epoch()} << 32);
  // The statistics of updates cover the time between two drift measurements, and so do the loss and the ages. Earlier updates
  // may have been larger, but they do not affect the present drift.
  updates_.emplace(run, samples_per_shard, std::clamp(options_.drift_every, updates_min, updates_max));
  probe_.emplace(geometry, run, samples_per_shard);
  ages_ = {};
  expected_ranges_ = missing_ranges_ = 0;
  excess_drift_count_ = 0;
  backup_.reset();
  broken_ = {};
  return {};
}

// Loads a checkpoint on all ranks or on none. If one rank fails, the others go back to the state that they had before.
Status ShardedStepper::load(ByteView bytes) {
  if (!broken_.ok()) return broken_;
  const auto before = state_->save();
  const auto loaded = state_->load(bytes);
  struct LoadResult {
    uint64_t loaded, step;
  } own{loaded.ok(), state_->step()};
  std::vector<LoadResult> all(world_);
  const auto done = group_->all_gather(ConstTensor(std::span(reinterpret_cast<const uint64_t*>(&own), 2)),
                                       Tensor(std::span(reinterpret_cast<uint64_t*>(all.data()), 2 * all.size())), {},
                                       {.timeout = options_.timeout, .codec = Codec()});
  Status status = loaded.ok() ? done.status() : loaded;
  for (Rank rank = 0; rank < world_ && status.ok(); ++rank) {
    if (all[rank].loaded == 0) status = {Code::invalid, concat("rank ", rank, " could not load its checkpoint")};
    else if (all[rank].step != own.step)
      status = mismatch(concat("rank ", rank, " loaded step ", all[rank].step, ", this rank step ", own.step));
  }
  if (!status.ok()) {
    if (loaded.ok()) static_cast<void>(state_->load(before));
    return status;
  }
  first_step_ = state_->step() - next_call_ / calls_per_step();
  reduced_step_ = 0;
  backup_.reset();
  return {};
}

}  // namespace unisono::internal

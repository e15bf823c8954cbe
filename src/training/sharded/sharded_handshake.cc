// Makes ranks start equal, and continue after ranks were lost or have joined.
#include <algorithm>
#include <numeric>
#include <string>

#include "base/hash.h"
#include "base/random.h"
#include "training/sharded/sharded_stepper.h"

namespace unisono::internal {

// Integers only; they are sent exactly.
struct ShardedStepper::RankState {
  uint64_t digest = 0, elements = 0;
  uint64_t was_there = 0, step = 0, rank = 0, world = 0,
           datagram_bytes = 0;              // was_there: 1 if this rank was in the former group
  uint64_t backup_of = 0, backup_step = 0;  // backup_of: a rank plus 1; 0: none
};

namespace {

constexpr uint32_t any_datagram = 1472;  // used if nothing is lossy
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
  if (auto status = made->meet(group, parameters, std::move(optimizer)); !status.ok()) return status;
  return made;
}

Result<ShardedResumed> ShardedStepper::resume(const Group& group) {
  if (auto status = meet(group, {}, nullptr); !status.ok()) return status;
  return resumed_;
}

uint64_t ShardedStepper::digest(const ShardOptimizer& optimizer, uint64_t elements) const {
  const auto text =
      options_.to_string() + "|" + Codec::of(options_.gradients).to_string() + "|" + Codec::of(options_.values).to_string();
  return mix64(hash_of(std::as_bytes(std::span(text))) ^ mix64(elements) ^ mix64(~uint64_t{optimizer.state_count()}));
}

Result<std::vector<ShardedStepper::RankState>> ShardedStepper::ask(Group& group, const ShardOptimizer& optimizer,
                                                                   uint64_t elements) const {
  constexpr size_t numbers = sizeof(RankState) / sizeof(uint64_t);
  RankState own{.digest = digest(optimizer, elements), .elements = elements};
  if (state_) {
    const auto& cut = state_->geometry().cut();
    own.was_there = 1, own.step = state_->step(), own.rank = rank_, own.world = world_, own.datagram_bytes = cut.datagram_bytes;
  }
  if (backup_) own.backup_of = backup_->owner + uint64_t{1}, own.backup_step = backup_->step;
  std::vector<RankState> told(group.world_size());
  const auto mine = std::span(reinterpret_cast<const uint64_t*>(&own), numbers);
  const auto all = std::span(reinterpret_cast<uint64_t*>(told.data()), numbers * told.size());
  if (auto done = group.all_gather(ConstTensor(mine), Tensor(all), {}, {.timeout = options_.timeout, .codec = Codec()});
      !done.ok())
    return done.status();
  const RankState* former = nullptr;
  for (Rank rank = 0; rank < told.size(); ++rank) {
    const auto& other = told[rank];
    if (other.elements != elements)
      return mismatch("rank " + std::to_string(rank) + " has " + std::to_string(other.elements) + " parameters, this rank " +
                      std::to_string(elements));
    if (other.digest != own.digest)
      return mismatch("rank " + std::to_string(rank) +
                      " has other options, or another optimizer, than this rank: " + options_.to_string());
    if (other.was_there == 0) continue;
    if (former == nullptr) former = &other;
    if (other.world != former->world || other.datagram_bytes != former->datagram_bytes || other.rank >= other.world) {
      return mismatch("rank " + std::to_string(rank) + " was rank " + std::to_string(other.rank) + " of " +
                      std::to_string(other.world) + ", others were in a group of " + std::to_string(former->world));
    }
  }
  return told;
}

static uint32_t shard_unit_of(const ShardedOptions& options) {
  const auto block = [](const StepCodec& codec) {
    return RangeGeometry::block_elements(wire_codec(codec, DType::f32, DType::f32, false));
  };
  // Block sizes are powers of two.
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

Status ShardedStepper::meet(const Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer) {
  std::vector<uint32_t> everybody(group.world_size());
  std::iota(everybody.begin(), everybody.end(), 0u);
  auto own = Group(group).split(everybody);
  if (!own.ok()) return own.status();
  const auto datagram_bytes = own->datagram_bytes();
  if (options_.delivery == Delivery::lossy && own->world_size() > 1 && datagram_bytes == 0) {
    return {Code::unsupported, "sharded step: delivery=lossy needs links of the transport \"udp\" between all ranks"};
  }
  const uint64_t elements = state_ ? state_->parameters().size() : parameters.size();
  const auto geometry = geometry_of(options_, elements, own->world_size(), datagram_bytes == 0 ? any_datagram : datagram_bytes);
  if (!geometry.ok()) return geometry.status();
  const auto told = ask(*own, state_ ? state_->optimizer() : *optimizer, elements);
  if (!told.ok()) return told.status();
  const bool is_first = std::ranges::none_of(*told, [](const RankState& one) { return one.was_there != 0; });
  auto status = is_first ? begin_alike(*own, parameters, std::move(optimizer), *geometry)
                         : go_on(*own, *told, std::move(optimizer), *geometry);
  if (!status.ok()) return status;
  group_ = std::move(*own);
  world_ = group_->world_size();
  rank_ = group_->rank();
  return start_anew();
}

Status ShardedStepper::begin_alike(Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer,
                                   const RangeGeometry& geometry) {
  std::vector<float> values(parameters.begin(), parameters.end());
  if (auto done = group.broadcast(Tensor(std::span(values)), 0, {.timeout = options_.timeout}); !done.ok())
    return done.status();
  auto state = ShardedState::make(geometry, group.rank(), values, std::move(optimizer), {.stale_max = options_.stale_max});
  if (!state.ok()) return state.status();
  state_.emplace(std::move(*state));
  resumed_ = {};
  return {};
}

// Finds the ranks with the newest values of lost shards; ranks are those of the former group.
Result<std::vector<ShardSpeakers>> ShardedStepper::find_speakers(Group& group, const std::vector<RankState>& told,
                                                                 std::span<const Rank> lost, const RangeGeometry& before,
                                                                 uint32_t step) const {
  std::vector<ShardSpeakers> found;
  for (const auto owner : lost) {
    const auto ranges = before.ranges(owner);
    std::vector<uint32_t> own(ranges), all(size_t{ranges} * told.size());
    if (state_) std::ranges::copy(state_->versions(owner), own.begin());
    if (ranges > 0) {
      if (auto done = group.all_gather(ConstTensor(std::span<const uint32_t>(own)), Tensor(std::span(all)), {},
                                       {.timeout = options_.timeout, .codec = Codec()});
          !done.ok())
        return done.status();
    }
    std::vector<ReplicaVersions> replicas;
    for (size_t i = 0; i < told.size(); ++i) {
      if (told[i].was_there != 0)
        replicas.push_back({.rank = static_cast<Rank>(told[i].rank), .versions = std::span(all).subspan(i * ranges, ranges)});
    }
    auto speakers = newest_replicas(replicas, step);
    if (!speakers.ok()) return speakers.status();
    found.push_back(std::move(*speakers));
  }
  return found;
}

Status ShardedStepper::go_on(Group& group, const std::vector<RankState>& told, std::unique_ptr<ShardOptimizer> optimizer,
                             const RangeGeometry& geometry) {
  const auto& former = *std::ranges::find_if(told, [](const RankState& one) { return one.was_there != 0; });
  const auto before =
      geometry_of(options_, former.elements, static_cast<uint32_t>(former.world), static_cast<uint32_t>(former.datagram_bytes));
  if (!before.ok()) return before.status();
  uint32_t step = 0;
  std::vector<Rank> lost;
  for (Rank rank = 0; rank < former.world; ++rank) {
    const auto it = std::ranges::find_if(told, [&](const RankState& one) { return one.was_there != 0 && one.rank == rank; });
    if (it == told.end()) lost.push_back(rank);
    else step = std::max(step, static_cast<uint32_t>(it->step));
  }
  const auto speakers = find_speakers(group, told, lost, *before, step);
  if (!speakers.ok()) return speakers.status();
  ShardedResumed resumed{.step = step};
  std::vector<LostShard> shards;
  for (size_t i = 0; i < lost.size(); ++i) {
    const RankState* newest = nullptr;
    for (const auto& one : told) {
      if (one.backup_of == lost[i] + uint64_t{1} && (newest == nullptr || one.backup_step > newest->backup_step)) newest = &one;
    }
    const bool is_mine = newest == &told[group.rank()];
    shards.push_back({.owner = lost[i], .speakers = (*speakers)[i].by_range, .backup = is_mine ? &*backup_ : nullptr});
    resumed.lost.push_back(
        {.rank = lost[i],
         .ranges = before->ranges(lost[i]),
         .stale_ranges = (*speakers)[i].stale_ranges,
         .age_max = (*speakers)[i].age_max,
         .state_age = newest == nullptr ? -1 : static_cast<int64_t>(step) - static_cast<int64_t>(newest->backup_step)});
  }
  auto status = rebuild(group, shards, step, std::move(optimizer), geometry);
  if (status.ok()) resumed_ = std::move(resumed);
  return status;
}

// For every element, exactly one rank adds a value that is not 0.
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

// Restarts call numbers, which count from the group's first call.
Status ShardedStepper::start_anew() {
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
  // Covers the steps since the last measurement of drift, like loss and ages. Earlier updates were larger, and would say
  // nothing about what replicas lack now.
  updates_.emplace(run, samples_per_shard, std::clamp(options_.drift_every, updates_min, updates_max));
  probe_.emplace(geometry, run, samples_per_shard);
  ages_ = {};
  expected_ranges_ = missing_ranges_ = 0;
  beyond_ = 0;
  backup_.reset();
  broken_ = {};
  return {};
}

// If one rank cannot load, no rank does.
Status ShardedStepper::load(ByteView bytes) {
  if (!broken_.ok()) return broken_;
  const auto before = state_->save();
  const auto loaded = state_->load(bytes);
  struct Said {
    uint64_t loaded, step;
  } own{loaded.ok(), state_->step()};
  std::vector<Said> all(world_);
  const auto done = group_->all_gather(ConstTensor(std::span(reinterpret_cast<const uint64_t*>(&own), 2)),
                                       Tensor(std::span(reinterpret_cast<uint64_t*>(all.data()), 2 * all.size())), {},
                                       {.timeout = options_.timeout, .codec = Codec()});
  Status status = loaded.ok() ? done.status() : loaded;
  for (Rank rank = 0; rank < world_ && status.ok(); ++rank) {
    if (all[rank].loaded == 0) status = {Code::invalid, "rank " + std::to_string(rank) + " could not load its checkpoint"};
    else if (all[rank].step != own.step)
      status = mismatch("rank " + std::to_string(rank) + " loaded step " + std::to_string(all[rank].step) +
                        ", this rank step " + std::to_string(own.step));
  }
  if (!status.ok()) {
    if (loaded.ok()) static_cast<void>(state_->load(before));
    return status;
  }
  first_step_ = state_->step() - next_call_ / parts();
  reduced_step_ = 0;
  backup_.reset();
  return {};
}

}  // namespace unisono::internal

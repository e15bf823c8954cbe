// Implements ShardedStep (unisono/sharded_step.h): the calls of a step, the handshake of the ranks, and how a step continues
// after an interruption.
//
// A lossy step makes two or three calls in a sub-group that only this object uses:
// - the reduction of gradients;
// - the exchange of scalars, if gradients are clipped or must be finite;
// - the broadcast of values.
// The group numbers its lossy calls, so the number of a call tells to which step and to which part of it the call belongs. If
// this rank was away, its next call tells it at which number the other ranks are. The rank then continues with the part that
// has this number.
//
// After certain steps, which are the same on all ranks, there are also reliable calls. They wait for ranks that are late.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "training/sharded/drift_probe.h"
#include "training/sharded/shard_rebuild.h"
#include "training/sharded/sharded_state.h"
#include "unisono/sharded_step.h"

namespace unisono::internal {

class ShardedStepper {
 public:
  static Result<std::unique_ptr<ShardedStepper>> make(const Group& group, std::span<const float> parameters,
                                                      std::unique_ptr<ShardOptimizer> optimizer, const ShardedOptions& options);

  std::span<const float> parameters() const { return state_->parameters(); }
  Result<ShardedReport> run(std::span<const float> gradient);
  Status resync();
  Status owners_values(std::span<float> values);
  ShardOptimizer& optimizer() { return state_->optimizer(); }
  uint32_t step() const { return state_->step(); }
  Bytes save() const { return state_->save(); }
  Status load(ByteView bytes);
  Result<ShardedResumed> resume(const Group& group);
  const ShardedResumed& resumed() const { return resumed_; }

 private:
  enum class Part : uint8_t { reduce, scalars, gather };
  struct Outcome {
    Status status;
    Report report;
    uint32_t behind = 0;
  };
  // The data that each rank sends to all others in the handshake.
  struct RankState;

  explicit ShardedStepper(const ShardedOptions& options) : options_(options) {}
  bool needs_scalars() const { return options_.clip_norm > 0 || options_.check_finite; }
  // If some rank has no shard, all calls are reliable. Lossy calls would deliver nothing to such a rank, so nothing would stop
  // it from running ahead of the others.
  bool is_lossy() const {
    return options_.delivery == Delivery::lossy && world_ > 1 && state_->geometry().ranges(world_ - 1) > 0;
  }
  uint32_t calls_per_step() const { return needs_scalars() ? 3 : 2; }
  Part part_of(uint32_t call) const;
  uint32_t step_of(uint32_t call) const { return first_step_ + call / calls_per_step() + 1; }

  // These functions are in sharded_stepper.cc and make one step.
  Status run_step(std::span<const float> gradient, ShardedReport& report);
  Outcome finish(Work work);
  CallOptions call_options(const StepCodec& codec) const;
  Outcome reduce(std::span<const float> gradient, ShardedReport& report);
  Outcome exchange_scalars();
  void mark_held_ranges(const DeliveryReport* delivery);
  void update(uint32_t step, ShardedReport& report);
  Outcome gather(ShardedReport& report);
  void record_arrivals(const DeliveryReport& delivery);
  void track_silent_ranks(ShardedReport& report);

  // These functions are in sharded_upkeep.cc and make the reliable calls after a step.
  Status run_upkeep(ShardedReport& report);
  Status measure_drift(ShardedReport& report);
  Status exchange_backups();
  Status gather_reliably(const StepCodec& codec, std::span<float> to);

  // These functions are in sharded_handshake.cc and implement make() and resume().
  Status handshake(const Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer);
  Status check_same_options(Group& group, const ShardOptimizer& optimizer, uint64_t elements) const;
  Result<std::vector<RankState>> exchange_states(Group& group, const ShardOptimizer& optimizer, uint64_t elements) const;
  Status broadcast_parameters(Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer,
                              const RangeGeometry& geometry);
  Status continue_training(Group& group, const std::vector<RankState>& rank_states, std::unique_ptr<ShardOptimizer> optimizer,
                           const RangeGeometry& geometry);
  Result<std::vector<NewestReplicas>> find_newest_replicas(Group& group, const std::vector<RankState>& rank_states,
                                                           std::span<const Rank> lost, const RangeGeometry& before,
                                                           uint32_t step) const;
  Status rebuild(Group& group, std::span<const LostShard> shards, uint32_t step, std::unique_ptr<ShardOptimizer> optimizer,
                 const RangeGeometry& geometry);
  Status reset_group_state();

  static constexpr uint32_t scalar_elements = 16;  // In the exchange of scalars, each rank sends this many floats.
  const ShardedOptions options_;
  std::optional<Group> group_;  // a sub-group of all ranks; only this object uses it
  uint32_t world_ = 1, rank_ = 0;
  std::optional<ShardedState> state_;
  uint32_t first_step_ = 0;             // the last step before the first call of the group
  uint32_t next_call_ = 0;              // number that the group's next lossy call will have
  uint32_t reduced_step_ = 0;           // the step to which gradient_ belongs
  std::vector<float> gradient_;         // the reduced gradient of the shard that this rank owns
  uint64_t gradient_range_ = 1;         // how many elements a range of gradients has
  std::vector<uint8_t> held_;           // for each range of values: nonzero if the range is held (not updated)
  std::vector<float> scalars_;          // scalar_elements floats for each rank
  std::vector<double> last_squares_;    // for each rank: the last sum of squares that arrived from it
  std::vector<uint32_t> scalar_steps_;  // for each rank: the step of the last scalars that arrived from it
  std::vector<uint8_t> finite_;  // for each rank: 1 if the last scalars that arrived from it say that its gradient was finite
  std::vector<std::vector<uint32_t>> needed_;  // for each owner: the ranges that must be fetched
  std::vector<uint32_t> silent_steps_;         // for each rank: for how many steps in a row it has been silent
  // for each rank: when the last step ended in which it sent anything
  std::vector<std::chrono::steady_clock::time_point> last_active_;
  int64_t reduce_hard_us_ = 0;
  std::optional<OwnUpdates> updates_;
  std::optional<DriftProbe> probe_;
  // ages_[m] counts the ranges of age m, summed over the steps since the last drift measurement.
  std::array<uint64_t, 64> ages_{};
  uint64_t expected_ranges_ = 0, missing_ranges_ = 0;  // These are counted since the last drift measurement.
  uint32_t excess_drift_count_ = 0;    // how many successive measurements found too much drift; equal on all ranks
  std::optional<ShardBackup> backup_;  // the backup of the optimizer state of the previous rank
  Status broken_;                      // If this is an error, run() returns it until resume() succeeds.
  ShardedResumed resumed_;
};

}  // namespace unisono::internal

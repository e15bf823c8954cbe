// Implements ShardedStep (unisono/sharded_step.h): the calls of a step, how a step continues after an interruption, and how
// ranks meet.
//
// A lossy step has two or three calls in this object's own group: the reduction, scalars (only for clipping and the check for
// finite values), and the broadcast. The group numbers lossy calls, so a call's number identifies step and part. A rank that
// was away learns the others' number from its own call, and continues with that part. All ranks make the reliable calls after
// the same steps, and wait for a rank that is late.
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
  // The data that each rank sends when ranks meet.
  struct RankState;

  explicit ShardedStepper(const ShardedOptions& options) : options_(options) {}
  bool wants_scalars() const { return options_.clip_norm > 0 || options_.check_finite; }
  // A rank without a shard receives nothing, so it could run ahead of the others.
  bool is_lossy() const {
    return options_.delivery == Delivery::lossy && world_ > 1 && state_->geometry().ranges(world_ - 1) > 0;
  }
  uint32_t parts() const { return wants_scalars() ? 3 : 2; }
  Part part_of(uint32_t call) const;
  uint32_t step_of(uint32_t call) const { return first_step_ + call / parts() + 1; }

  // sharded_stepper.cc: one step.
  Status make_step(std::span<const float> gradient, ShardedReport& report);
  Outcome finish(Work work);
  CallOptions call_options(const StepCodec& codec) const;
  Outcome reduce(std::span<const float> gradient, ShardedReport& report);
  Outcome exchange_scalars();
  void note_held(const DeliveryReport* delivery);
  void update(uint32_t step, ShardedReport& report);
  Outcome gather(ShardedReport& report);
  void take_arrivals(const DeliveryReport& delivery);
  void note_silence(ShardedReport& report);

  // sharded_upkeep.cc: reliable calls after a step.
  Status keep_up(ShardedReport& report);
  Status measure_drift(ShardedReport& report);
  Status exchange_backups();
  Status gather_reliably(const StepCodec& codec, std::span<float> to);

  // sharded_handshake.cc: making and resuming.
  Status meet(const Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer);
  uint64_t digest(const ShardOptimizer& optimizer, uint64_t elements) const;
  Result<std::vector<RankState>> ask(Group& group, const ShardOptimizer& optimizer, uint64_t elements) const;
  Status begin_alike(Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer,
                     const RangeGeometry& geometry);
  Status go_on(Group& group, const std::vector<RankState>& told, std::unique_ptr<ShardOptimizer> optimizer,
               const RangeGeometry& geometry);
  Result<std::vector<ShardSpeakers>> find_speakers(Group& group, const std::vector<RankState>& told, std::span<const Rank> lost,
                                                   const RangeGeometry& before, uint32_t step) const;
  Status rebuild(Group& group, std::span<const LostShard> shards, uint32_t step, std::unique_ptr<ShardOptimizer> optimizer,
                 const RangeGeometry& geometry);
  Status start_anew();

  static constexpr uint32_t scalar_elements = 16;  // of one rank: a block of plain elements
  const ShardedOptions options_;
  std::optional<Group> group_;  // this object's own
  uint32_t world_ = 1, rank_ = 0;
  std::optional<ShardedState> state_;
  uint32_t first_step_ = 0;                                         // the last step before the group's first call
  uint32_t next_call_ = 0;                                          // number of the group's next lossy call
  uint32_t reduced_step_ = 0;                                       // the step that gradient_ belongs to
  std::vector<float> gradient_;                                     // reduced gradient of the own shard
  uint64_t gradient_range_ = 1;                                     // elements of a range of gradients
  std::vector<uint8_t> held_;                                       // by range of values
  std::vector<float> scalars_;                                      // a block per rank
  std::vector<double> last_squares_;                                // by rank, as last received
  std::vector<uint32_t> scalar_steps_;                              // by rank: the step that they belong to
  std::vector<uint8_t> finite_;                                     // by rank, as last received
  std::vector<std::vector<uint32_t>> needed_;                       // by owner
  std::vector<uint32_t> silent_steps_;                              // by rank, in a row
  std::vector<std::chrono::steady_clock::time_point> last_active_;  // by rank: end of the last step in which it was not silent
  int64_t reduce_hard_us_ = 0;
  std::optional<OwnUpdates> updates_;
  std::optional<DriftProbe> probe_;
  std::array<uint64_t, 64> ages_{};                    // of ranges, summed over steps since the last drift measurement
  uint64_t expected_ranges_ = 0, missing_ranges_ = 0;  // since the last drift measurement
  uint32_t beyond_ = 0;                                // successive measurements with too much drift; equal on all ranks
  std::optional<ShardBackup> backup_;                  // of the previous rank
  Status broken_;                                      // the error that run() returns until resume()
  ShardedResumed resumed_;
};

}  // namespace unisono::internal

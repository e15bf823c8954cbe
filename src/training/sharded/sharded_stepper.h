// What is behind ShardedStep (unisono/sharded_step.h): which calls a step is made of, what becomes of one that is cut short,
// and how ranks meet.
//
// A lossy step is three calls in the group of its own, or two: the reduction, scalars (only to clip and to find what is not
// finite), the broadcast. Lossy calls are numbered by the group, so the number of a call says which part of which step it is: a
// rank that was away learns the others' number from its own call, and goes on with that part. What is reliable is done by all
// ranks after the same steps; who is late for it is waited for.
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
  // What a rank says of itself where ranks meet.
  struct Told;

  explicit ShardedStepper(const ShardedOptions& options) : options_(options) {}
  bool wants_scalars() const { return options_.clip_norm > 0 || options_.check_finite; }
  // Who has no shard receives nothing, and would run ahead.
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
  Outcome tell_scalars();
  void note_held(const DeliveryReport* delivery);
  void update(uint32_t step, ShardedReport& report);
  Outcome gather(ShardedReport& report);
  void take_arrivals(const DeliveryReport& delivery);
  void note_silence(ShardedReport& report);

  // sharded_upkeep.cc: what is reliable, after a step.
  Status keep_up(ShardedReport& report);
  Status measure_drift(ShardedReport& report);
  Status exchange_backups();
  Status gather_reliably(const StepCodec& codec, std::span<float> to);

  // sharded_handshake.cc: making and re-making.
  Status meet(const Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer);
  uint64_t digest(const ShardOptimizer& optimizer, uint64_t elements) const;
  Result<std::vector<Told>> ask(Group& group, const ShardOptimizer& optimizer, uint64_t elements) const;
  Status begin_alike(Group& group, std::span<const float> parameters, std::unique_ptr<ShardOptimizer> optimizer,
                     const RangeGeometry& geometry);
  Status go_on(Group& group, const std::vector<Told>& told, std::unique_ptr<ShardOptimizer> optimizer,
               const RangeGeometry& geometry);
  Result<std::vector<ShardSpeakers>> find_speakers(Group& group, const std::vector<Told>& told, std::span<const Rank> lost,
                                                   const RangeGeometry& before, uint32_t step) const;
  Status rebuild(Group& group, std::span<const LostShard> shards, uint32_t step, std::unique_ptr<ShardOptimizer> optimizer,
                 const RangeGeometry& geometry);
  Status start_anew();

  static constexpr uint32_t scalar_elements = 16;  // of one rank: what a block of plain elements has
  const ShardedOptions options_;
  std::optional<Group> group_;  // of its own
  uint32_t world_ = 1, rank_ = 0;
  std::optional<ShardedState> state_;
  uint32_t first_step_ = 0;                                      // the last one before the group's first call
  uint32_t next_call_ = 0;                                       // of the group's lossy ones
  uint32_t reduced_step_ = 0;                                    // the step that gradient_ is of
  std::vector<float> gradient_;                                  // reduced, of the own shard
  uint64_t gradient_range_ = 1;                                  // elements of a range of gradients
  std::vector<uint8_t> held_;                                    // by range of values
  std::vector<float> scalars_;                                   // a block per rank
  std::vector<double> last_squares_;                             // by rank, as it was told last
  std::vector<uint32_t> scalar_steps_;                           // by rank: of which step that was
  std::vector<uint8_t> finite_;                                  // by rank, likewise
  std::vector<std::vector<uint32_t>> needed_;                    // by owner
  std::vector<uint32_t> silent_steps_;                           // by rank, in a row
  std::vector<std::chrono::steady_clock::time_point> heard_at_;  // by rank: the end of the last step that was none of them
  int64_t reduce_hard_us_ = 0;
  std::optional<OwnUpdates> updates_;
  std::optional<DriftProbe> probe_;
  std::array<uint64_t, 64> ages_{};                    // of ranges, summed over steps since drift was measured
  uint64_t expected_ranges_ = 0, missing_ranges_ = 0;  // likewise
  uint32_t beyond_ = 0;                // measurements in a row that found more drift than there should be; equal on all ranks
  std::optional<ShardBackup> backup_;  // of the rank before
  Status broken_;                      // why run() refuses until resume()
  ShardedResumed resumed_;
};

}  // namespace unisono::internal

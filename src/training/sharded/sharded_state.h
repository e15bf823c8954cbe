// One rank's state for training with a sharded optimizer over lossy links: its working copy of all parameters, the age of each
// range of the other ranks' shards, and the exact values of its own shard.
//
// Each range has one writer, so replicas may lag behind, but always agree on the newest value. Ranks send values, never
// differences, so one delivery brings a range up to date whatever was lost before. Pure: gradients and datagram contents come
// in, values to send come out. After make(), only functions that return memory, and rebuild(), allocate. Method: arXiv
// 2507.07114; ages, healing and holding: docs/design/methods/packet_loss.md, "The sharded step".
//
// Steps are 32-bit numbers from 0, and do not wrap: a run has at most 4,294,967,295.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "lossy/range_geometry.h"
#include "unisono/shard_optimizer.h"
#include "unisono/status.h"

namespace unisono {

struct ShardedStateOptions {
  uint32_t stale_max = 16;  // steps; a range this old is fetched reliably before the next step; 0 = never
};

// The result of one step at this rank.
struct StaleReport {
  uint64_t stale_ranges = 0;  // of other ranks' shards
  uint32_t age_max = 0;
  uint64_t held_ranges = 0;  // of the own shard: not updated in this step
  friend bool operator==(const StaleReport&, const StaleReport&) = default;
};

// Statistics of a rank's reduced shard, for steps that clip gradients or check for finite values. Ranks exchange them reliably
// before the update.
struct GradientScalars {
  double squares = 0;  // sum of squares; held ranges count 0
  bool finite = true;
};
// Factor for gradients that limits their norm to norm_max, as in PyTorch's clip_grad_norm_. squares: sum over all ranks.
float clip_factor(double squares, double norm_max);

// A whole model, collected from the ranks that have its parts: see shard_rebuild.h.
struct GatheredShards {
  uint32_t step = 0;                             // step before the next update
  std::span<const float> values{};               // by element of the tensor
  std::span<const std::vector<float>> states{};  // optimizer states, by element of the tensor; empty: the optimizer starts anew
};

class ShardedState {
 public:
  // values: the initial parameters, equal on all ranks. The geometry's codec encodes the values that are sent. Resizes the
  // optimizer to the shard. invalid: sizes do not match, no such rank, or no optimizer.
  static Result<ShardedState> make(const RangeGeometry& geometry, Rank self, std::span<const float> values,
                                   std::unique_ptr<ShardOptimizer> optimizer, const ShardedStateOptions& options = {});

  // theta: the values that the model computes with. The own shard holds the values that other ranks decode, so replicas without
  // stale ranges are equal to the bit, from the start.
  std::span<float> parameters() { return parameters_; }
  std::span<const float> parameters() const { return parameters_; }
  // M: the fp32 values of the own shard.
  std::span<const float> own_values() const { return own_; }
  ShardOptimizer& optimizer() { return *optimizer_; }
  const RangeGeometry& geometry() const { return geometry_; }
  Rank self() const { return self_; }
  // The last step begun here; 0: none.
  uint32_t step() const { return step_; }

  // Statistics for all ranks. If any rank's gradient is not finite, no rank updates.
  GradientScalars scalars(std::span<const float> gradient, std::span<const uint8_t> held) const;
  // Updates the own shard and begins the next step(). gradient: the mean. held: by range, whether it is held because
  // nothing arrived and on_empty is hold; empty: none is. Gradients are multiplied by `scale` (clipping).
  void update(std::span<const float> gradient, std::span<const uint8_t> held, float scale = 1);
  // Replaces update(): holds the whole shard, because the step's gradient is not finite, or because this rank missed `steps`
  // steps.
  void hold(uint32_t steps = 1);
  // Returns the own values, encoded range by range at geometry().offset(), held ranges included. Sets the own part of
  // parameters() to the values that other ranks decode. Valid until the next call.
  std::span<const std::byte> encode();
  // Writes a range of another rank's shard. True: it was written, because `step` is newer than its version. False, without a
  // change: it is not newer, this rank has not begun that step, there is no such range, or the bytes are not a valid encoding.
  bool receive(Rank owner, uint32_t range, uint32_t step, std::span<const std::byte> encoded);
  // Replace encode() and receive() if the caller sends own_values() and writes parameters() itself, by the same rules: the own
  // part holds what other ranks decode, and all ranges of the owner's shard have arrived in this step except the given ones
  // (ascending).
  void sent();
  void arrived(Rank owner, std::span<const uint32_t> missing);
  // A whole shard as encode() returns it, for reliable broadcasts. Returns the number of ranges written.
  uint32_t receive_shard(Rank owner, uint32_t step, std::span<const std::byte> encoded);
  // Ends the phase: ranges that did not arrive in this step are one step older.
  StaleReport close_step() const;
  // The owner's ranges that must be fetched now because of stale_max. Reuses the vector's memory.
  void to_fetch(Rank owner, std::vector<uint32_t>& ranges) const;
  // Age of the values in steps: 0 if they arrived in this step.
  uint32_t age(Rank owner, uint32_t range) const;
  // The step that produced these values.
  uint32_t version(Rank owner, uint32_t range) const { return versions(owner)[range]; }
  std::span<const uint32_t> versions(Rank owner) const;
  // Counts the other ranks' ranges by age: [0], [1], …; the last entry counts all older ones.
  void age_histogram(std::span<uint64_t> counts) const;

  // Everything including the optimizer's state, for checkpoints.
  Bytes save() const;
  // corrupt: truncated or changed. invalid: of another geometry, rank or optimizer; the message names it. An error changes
  // nothing. Allocates nothing.
  Status load(ByteView saved);

  // Cuts shards anew, for another number of ranks or because another rank takes this shard. Every range gets the version of the
  // pieces, so nothing is stale. invalid: element counts differ from before or from the geometry, no such rank, or states do
  // not match the optimizer. An error changes nothing.
  Status rebuild(const RangeGeometry& geometry, Rank self, const GatheredShards& pieces);

 private:
  ShardedState(const RangeGeometry& geometry, Rank self, std::unique_ptr<ShardOptimizer> optimizer,
               const ShardedStateOptions& options)
      : geometry_(geometry), self_(self), options_(options), optimizer_(std::move(optimizer)) {}
  void cut(std::span<const float> values, uint32_t step);
  std::span<float> elements(Rank owner, uint32_t range);

  RangeGeometry geometry_;
  Rank self_;
  ShardedStateOptions options_;
  std::unique_ptr<ShardOptimizer> optimizer_;
  std::vector<float> parameters_, own_;
  std::vector<std::byte> encoded_;
  std::vector<uint32_t> versions_;   // by owner and range; for the own shard, the step of the last encode()
  std::vector<size_t> first_range_;  // by owner: index of its first version; one more entry at the end
  uint32_t step_ = 0;
  uint64_t held_ = 0;  // in the current step
};

}  // namespace unisono

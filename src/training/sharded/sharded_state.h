// One rank's state in training with a sharded optimizer over links that lose packets: its working copy of all parameters, with
// how old each range of the others' shards is, and the true values of its own shard.
//
// One writer per range: replicas can lag behind, never disagree about the newest value; and values travel, never differences,
// so one delivery heals a range whatever was lost before. Pure: gradients and datagrams' contents come in, values to send come
// out. After make() nothing allocates but what returns memory, and rebuild(). Method: arXiv 2507.07114; ages, healing and
// holding: docs/design/methods/packet_loss.md, "The sharded step".
//
// Steps are counted in 32 bits, from 0, and do not wrap: a run has at most 4,294,967,295.
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

// What one step left behind at this rank.
struct StaleReport {
  uint64_t stale_ranges = 0;  // of other ranks' shards
  uint32_t age_max = 0;
  uint64_t held_ranges = 0;  // of the own shard: no update in this step
  friend bool operator==(const StaleReport&, const StaleReport&) = default;
};

// Of a rank's reduced shard, for steps that clip gradients or scale losses: ranks tell each other, reliably, before they
// update.
struct GradientScalars {
  double squares = 0;  // their sum; ranges that are held count 0
  bool finite = true;
};
// By what gradients are to be multiplied so that their norm is at most norm_max, as PyTorch's clip_grad_norm_ has it. squares:
// of all ranks.
float clip_factor(double squares, double norm_max);

// All of a model, gathered from those who have it: see shard_rebuild.h.
struct GatheredShards {
  uint32_t step = 0;                             // that the next update follows
  std::span<const float> values{};               // by element of the tensor
  std::span<const std::vector<float>> states{};  // the optimizer's, likewise; none: it starts anew
};

class ShardedState {
 public:
  // values: the initial parameters, equal on all ranks. The geometry's codec is what values travel as. The optimizer is made as
  // large as the shard. invalid: sizes that do not fit, no such rank, or no optimizer.
  static Result<ShardedState> make(const RangeGeometry& geometry, Rank self, std::span<const float> values,
                                   std::unique_ptr<ShardOptimizer> optimizer, const ShardedStateOptions& options = {});

  // theta: what the model computes with. Its own shard is what the others decode, so that all replicas without stale ranges are
  // the same to the bit: from the start on.
  std::span<float> parameters() { return parameters_; }
  std::span<const float> parameters() const { return parameters_; }
  // M: the fp32 values of the own shard.
  std::span<const float> own_values() const { return own_; }
  ShardOptimizer& optimizer() { return *optimizer_; }
  const RangeGeometry& geometry() const { return geometry_; }
  Rank self() const { return self_; }
  // The last one that was begun here; 0: none.
  uint32_t step() const { return step_; }

  // 4: if another rank's is not finite, no rank updates.
  GradientScalars scalars(std::span<const float> gradient, std::span<const uint8_t> held) const;
  // 5: the reduced gradient of the own shard (mean), and by range whether it is held: nothing arrived, and on_empty = hold;
  // empty: none is. Gradients are multiplied by `scale` (clipping). Then step() is one more.
  void update(std::span<const float> gradient, std::span<const uint8_t> held, float scale = 1);
  // Instead of update(): the whole shard is held, because the step's gradient is not finite, or because this rank missed
  // `steps` steps.
  void hold(uint32_t steps = 1);
  // 6: the own values, encoded as they travel, range after range at geometry().offset(); the own part of parameters() becomes
  // what the others decode. Held ranges too. Good until the next call.
  std::span<const std::byte> encode();
  // 8: a range of another rank's shard. True: it was written, because `step` is newer than its version. False, and nothing
  // changes: it is not; or this rank has not begun that step; or no such range, or nothing that the codec makes.
  bool receive(Rank owner, uint32_t range, uint32_t step, std::span<const std::byte> encoded);
  // Instead of encode() and receive(), where something else sends own_values() and writes parameters(), by the same rules: the
  // own part of them is what others decode; and of an owner's shard all ranges of this step are there but these (ascending).
  void sent();
  void arrived(Rank owner, std::span<const uint32_t> missing);
  // A whole shard, as encode() gives it: what is broadcast reliably. How many ranges were written.
  uint32_t receive_shard(Rank owner, uint32_t step, std::span<const std::byte> encoded);
  // The phase is closed: what was not received in this step is one older.
  StaleReport close_step() const;
  // Ranges that stale_max says must be fetched now, by owner. Reuses the vector's memory.
  void to_fetch(Rank owner, std::vector<uint32_t>& ranges) const;
  // Steps for which the values have not been the newest: 0 if they came in this step.
  uint32_t age(Rank owner, uint32_t range) const;
  // The step whose values these are.
  uint32_t version(Rank owner, uint32_t range) const { return versions(owner)[range]; }
  std::span<const uint32_t> versions(Rank owner) const;
  // How many ranges of other ranks' shards have which age: [0], [1], …, the last entry counts all older ones.
  void age_histogram(std::span<uint64_t> counts) const;

  // Everything, with the optimizer's state: for checkpoints.
  Bytes save() const;
  // corrupt: it was cut or changed; invalid: of another geometry, rank or optimizer, named. Then nothing has changed. Allocates
  // nothing.
  Status load(ByteView saved);

  // Cut anew, for another number of ranks, or because another rank takes this shard. Every range is as new as the pieces,
  // nothing is stale. invalid: not as many elements as before, or as the geometry; no such rank; or other states than the
  // optimizer has. Then nothing has changed.
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
  std::vector<uint32_t> versions_;   // by owner, by range; of the own shard too, where it is the step of the last encode()
  std::vector<size_t> first_range_;  // by owner, where its versions begin; one more at the end
  uint32_t step_ = 0;
  uint64_t held_ = 0;  // in the present step
};

}  // namespace unisono

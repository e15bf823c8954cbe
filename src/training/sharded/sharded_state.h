// The state of one rank that trains with a sharded optimizer over lossy links. The state consists of a working copy of all
// parameters, the exact values of the shard that this rank owns, and the age of each range (the elements of one datagram) in
// the other shards.
//
// Each range has one writer. Therefore a replica may be old, but two replicas never have different values of the same version.
// Ranks send values, never differences. Therefore one delivery brings a range up to date, whatever was lost before. This class
// does not communicate: it takes gradients and received bytes, and returns encoded values. After make(), nothing allocates
// except rebuild() and functions that return memory. The method is from arXiv 2507.07114. docs/design/methods/packet_loss.md,
// "The sharded step", describes ages, the repair of old ranges, and held ranges.
//
// Steps are 32-bit numbers. They start at 0 and do not wrap, so a run has at most 4,294,967,295 steps.
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
  uint32_t stale_max = 16;  // A range of this age is fetched reliably, before the next step. 0: ranges are never fetched.
};

// The events of one step at this rank.
struct StaleReport {
  uint64_t stale_ranges = 0;  // how many ranges of the other ranks' shards did not arrive in this step
  uint32_t age_max = 0;
  uint64_t held_ranges = 0;  // how many ranges of this rank's shard were not updated in this step
  friend bool operator==(const StaleReport&, const StaleReport&) = default;
};

// Statistics of the reduced gradient of a rank's shard. If gradients are clipped or must be finite, the ranks exchange these
// statistics before the update.
struct GradientScalars {
  double squares = 0;  // the sum of squares over all ranges that are not held
  bool finite = true;
};
// Returns the factor that limits the norm of the gradient to norm_max. It is computed like that of PyTorch's clip_grad_norm_.
// `squares` is the sum of GradientScalars::squares over all ranks.
float clip_factor(double squares, double norm_max);

// A whole model. Its parts were collected from the ranks that have them (shard_rebuild.h).
struct GatheredShards {
  uint32_t step = 0;                // These values include all steps up to this one.
  std::span<const float> values{};  // one value for each element of the tensor
  // The optimizer states. Each has one value for each element of the tensor. If this is empty, the optimizer starts without
  // state.
  std::span<const std::vector<float>> states{};
};

class ShardedState {
 public:
  // `values` are the initial parameters. They must be equal on all ranks. The values that ranks send are encoded with the codec
  // of the geometry. make() resizes the optimizer to the shard. Returns invalid if sizes do not match, if there is no rank
  // `self`, or if the optimizer is null.
  static Result<ShardedState> make(const RangeGeometry& geometry, Rank self, std::span<const float> values,
                                   std::unique_ptr<ShardOptimizer> optimizer, const ShardedStateOptions& options = {});

  // theta: the values that the model uses to compute. In the shard of this rank, they are the values that other ranks decode,
  // even at the start. Therefore all ranks have equal bits in ranges that are not stale.
  std::span<float> parameters() { return parameters_; }
  std::span<const float> parameters() const { return parameters_; }
  // M: the exact fp32 values of the shard that this rank owns.
  std::span<const float> own_values() const { return own_; }
  ShardOptimizer& optimizer() { return *optimizer_; }
  const RangeGeometry& geometry() const { return geometry_; }
  Rank self() const { return self_; }
  // Returns the last step that this rank has begun. 0: it has not begun any.
  uint32_t step() const { return step_; }

  // Returns the statistics that the ranks exchange. If the gradient of any rank is not finite, no rank may call update().
  GradientScalars scalars(std::span<const float> gradient, std::span<const uint8_t> held) const;
  // Begins the next step and updates the shard of this rank. `gradient` is the mean over the ranks. It is multiplied by
  // `scale`, for clipping. `held` has one entry per range. A nonzero entry means that the range is not updated, because no
  // gradient arrived for it. If `held` is empty, all ranges are updated.
  void update(std::span<const float> gradient, std::span<const uint8_t> held, float scale = 1);
  // Begins `steps` steps that do not change the shard of this rank. Call this instead of update() if the gradient is not
  // finite, or if this rank missed steps.
  void hold(uint32_t steps = 1);
  // Encodes the values of this rank, including held ranges. Each range begins at geometry().offset(). In parameters(), the
  // values of this rank's shard are replaced by those that other ranks decode. The result is valid until the next call.
  std::span<const std::byte> encode();
  // Writes a received range of another rank's shard and returns true. In these cases, returns false and changes nothing:
  // - `step` is not newer than the version of the range, or this rank has not begun `step`;
  // - there is no such range;
  // - the bytes are not a valid encoding.
  bool receive(Rank owner, uint32_t range, uint32_t step, std::span<const std::byte> encoded);
  // These functions are for callers that send own_values() themselves, and that write the received values to parameters().
  // Instead of encode(), call sent(). At this time, the shard of this rank in parameters() must hold what other ranks decode.
  // Instead of receive(), call arrived(): all ranges of the owner's shard arrived in this step, except `missing` (in ascending
  // order).
  void sent();
  void arrived(Rank owner, std::span<const uint32_t> missing);
  // Receives a whole shard, encoded by its owner with encode(). Returns how many ranges were written.
  uint32_t receive_shard(Rank owner, uint32_t step, std::span<const std::byte> encoded);
  // Call this at the end of a step. It counts the ranges that did not arrive in this step.
  StaleReport close_step() const;
  // Sets `ranges` to those ranges of the owner whose age is at least stale_max: they must be fetched now. The memory of the
  // vector is used again.
  void to_fetch(Rank owner, std::vector<uint32_t>& ranges) const;
  // Returns how many steps ago the owner produced the values of the range. 0: they arrived in this step.
  uint32_t age(Rank owner, uint32_t range) const;
  // Returns the step in which the owner produced the values of the range that this rank has.
  uint32_t version(Rank owner, uint32_t range) const { return versions(owner)[range]; }
  std::span<const uint32_t> versions(Rank owner) const;
  // Sets counts[m] to the number of ranges of other ranks' shards whose age is m. The last entry also counts all older ranges.
  void age_histogram(std::span<uint64_t> counts) const;

  // Returns the whole state as bytes, including the optimizer state. Used for checkpoints.
  Bytes save() const;
  // Returns corrupt if the bytes are truncated or changed. Returns invalid if they belong to another geometry, rank or
  // optimizer; the text names the first difference. After an error, nothing has changed. This function does not allocate.
  Status load(ByteView saved);

  // Divides the tensor into shards again, because the number of ranks has changed or this rank gets another shard. Every range
  // gets the version pieces.step, so no range is stale. In these cases, returns invalid and changes nothing:
  // - `pieces` or the geometry has another number of elements than this state;
  // - there is no rank `self`;
  // - the optimizer has another number of states.
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
  // Indexed by owner and range. For the shard of this rank, it is the step of the last encode() or sent().
  std::vector<uint32_t> versions_;
  // For each owner: the index in versions_ of its first range. There is one more entry at the end.
  std::vector<size_t> first_range_;
  uint32_t step_ = 0;
  uint64_t held_ = 0;  // how many ranges are held in the current step
};

}  // namespace unisono

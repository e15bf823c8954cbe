// Training with a sharded optimizer over links that lose packets. Every rank owns a shard of the parameters. It updates its
// shard, and sends the new values to all ranks.
//
//   auto options = *unisono::ShardedOptions::parse("loss_budget=0.2,clip=1");
//   auto step = unisono::ShardedStep::make(*group, initial, unisono::make_adamw({.rate = 3e-4}), options);
//   while (step->step() < steps) {
//     backward(step->parameters(), gradient);  // the model computes with these parameters
//     auto report = step->run(gradient);       // averages all ranks' gradients, updates the own shard, and sends it
//   }                                          // on peer_lost: group->reform(), then step->resume(*group)
//
// If at most the share loss_budget of the data is lost, it is not sent again. The gradient is then an unbiased average of the
// data that arrived. Parameters that do not arrive keep their old values. After a step without loss, all replicas are equal to
// the bit.
//
// Only one rank writes each value, and ranks send values, never differences. Replicas therefore agree on which value is newest.
// The mean number of steps by which a replica lags is bounded.
//
// Source: "Distributed Training under Packet Loss", arXiv 2507.07114. docs/guides/packet_loss.md derives the expected
// difference between replicas.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/codec.h"
#include "unisono/delivery.h"
#include "unisono/export.h"
#include "unisono/group.h"
#include "unisono/shard_optimizer.h"
#include "unisono/status.h"

namespace unisono {

namespace internal {
class ShardedStepper;
}

struct ShardedOptions {
  // reliable: all data arrives, over any transport. The result has the same bits as lossy delivery without loss. lossy: this
  // needs the transport "udp". If some rank would have no shard, reliable delivery is used instead. With N ranks, this happens
  // only if there are at most 16 (N-1) N fp32 parameters.
  Delivery delivery = Delivery::lossy;
  DeliveryOptions lossy{};  // for reduce_shards and gather_shards; OnEmpty::automatic means hold
  StepCodec gradients{};    // codec of the gradients; plain: they are sent as fp32
  StepCodec values{};       // Codec of the parameters. Their owner keeps them in fp32, but computes with the decoded values.
  double clip_norm = 0;     // if the norm of the average gradient is larger, it is scaled down to this; 0: no limit
  // true: if the average contains a value that is not finite, the step changes nothing on any rank. clip_norm implies this.
  bool check_finite = false;
  uint32_t stale_max = 16;    // Values that would become this many steps old are requested until they arrive; 0: never.
  uint32_t resync_every = 0;  // after this many steps, all values are transferred reliably; 0: never
  // The number of steps between backups; 0: there are none. In a backup, each rank sends its optimizer state reliably to the
  // next rank. The backup is used if the owner of the state is lost.
  uint32_t backup_every = 100;
  uint32_t drift_every = 100;  // number of steps between measurements of the difference between replicas; 0: never
  Milliseconds timeout{0};     // timeout of reliable operations; 0: the timeout of the group

  // Accepts "delivery=lossy,gradients=plain,values=bf16,clip=1,finite=on,stale_max=16,resync=0,backup=100,drift=100", and all
  // options of DeliveryOptions::parse(). Codecs take no options here, and `timeout` cannot be set. Returns invalid (bad_option)
  // for any other text. The message names the wrong part.
  UNISONO_EXPORT static Result<ShardedOptions> parse(std::string_view text);
  // Returns text that parse() reads. Options of codecs and options that have default values are left out.
  UNISONO_EXPORT std::string to_string() const;
  // Returns ok, or invalid (bad_option). The message of the error names the field that is out of range.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const ShardedOptions&, const ShardedOptions&) = default;
};

// How far replicas differ: mean squared differences per element. The values named …_expected are computed from the observed
// loss and the observed updates (docs/guides/packet_loss.md).
struct ShardedDrift {
  double owner = 0, owner_expected = 0;  // between a replica and the values of the owner
  double pair = 0, pair_expected = 0;    // between two replicas; NaN if there are only two ranks
  // 2p/(1+p) * (second moment of an update), where p is the loss. This formula is attributed to the paper. Its values are too
  // small.
  double paper_form = 0;
  // Like `pair`, but it covers only those ranges that one of the two replicas received in the last step and the other did not:
  // pair = 2p/(1+p) * gap. NaN if there are no such ranges.
  double gap = 0;
  double second_moment = 0, rho = 0;  // second moment of the update in a step; correlation of successive updates
  // The share of the ranges that is missing, and the probability that a missing range arrives in the next step.
  double loss = 0, recovery = 0;
};

// Describes one step at this rank.
struct ShardedReport {
  uint32_t step = 0;             // number of the step, from 1
  uint32_t behind = 0;           // number of steps that this rank has missed
  bool applied = true;           // false: the average was not finite, so nothing has changed
  double gradient_norm = -1;     // norm of the average gradient over all shards, before clipping; -1: not computed
  double clipped = 1;            // clipping multiplied the gradients by this factor
  uint32_t scalars_missing = 0;  // number of ranks whose norm did not arrive, so that their previous norm was used
  // Numbers of ranges in the shards of other ranks: all ranges, and those whose values are older than this step.
  uint64_t ranges = 0, stale_ranges = 0;
  uint32_t age_max = 0;         // age of the range with the oldest values, in steps
  uint64_t held_ranges = 0;     // number of ranges in this rank's shard that were not updated, because no contribution arrived
  uint64_t fetched_ranges = 0;  // number of ranges that were requested again, just before they were stale_max steps old
  std::shared_ptr<const DeliveryReport> gradients, values;  // null: delivery was reliable, or this rank missed the step
  // Ranks whose link is closed, and ranks that were silent for at least three steps and one second. If there are any, the next
  // run() returns peer_lost.
  std::vector<uint32_t> lost;
  std::optional<ShardedDrift> drift;
  uint64_t sent_bytes = 0;
  int64_t reduce_us = 0, update_us = 0, gather_us = 0, total_us = 0;
  std::vector<std::string> warnings{};  // the warnings that are new in this step

  // Returns one line of text for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// Says how ranks continue after their group was re-formed.
struct ShardedResumed {
  struct Lost {
    uint32_t rank = 0;  // its rank in the former group
    // Numbers of ranges in its shard: all ranges, and those whose newest values are lost.
    uint64_t ranges = 0, stale_ranges = 0;
    uint32_t age_max = 0;  // age of the oldest values that replaced lost ones, in steps
    // Age, in steps, of the backup from which the lost rank's optimizer state was restored. -1: there was no backup, so the
    // state is zero.
    int64_t state_age = -1;
  };
  uint32_t step = 0;  // number of the last completed step
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT ShardedStep {
 public:
  // All ranks of the group call make() with equal arguments. They all begin with the parameters of rank 0. ShardedStep works in
  // a new sub-group. If a process joined a re-formed group, it calls make() while the other ranks call resume(), and takes
  // their parameters. optimizer: updates this rank's shard. It must be equal on all ranks. Errors:
  // - invalid (bad_option): the options make no sense.
  // - invalid (config_mismatch): the options differ between ranks.
  // - unsupported: delivery is lossy, but some link carries no datagrams.
  static Result<ShardedStep> make(const Group& group, std::span<const float> parameters,
                                  std::unique_ptr<ShardOptimizer> optimizer, const ShardedOptions& options = {});
  ShardedStep(ShardedStep&&) noexcept;
  ShardedStep& operator=(ShardedStep&&) noexcept;
  ~ShardedStep();

  // Returns the values with which the model computes. run(), resync(), load() and resume() change the values, but not their
  // address.
  std::span<const float> parameters() const;
  // Runs one step. gradient: this rank's gradient of all parameters. If a rank missed steps, it continues with the current step
  // of the other ranks. Therefore use step() to count steps, not the number of calls. Errors:
  // - peer_lost, late: re-form the group, and call resume().
  // - invalid: the size is wrong, or ranks run different steps.
  Result<ShardedReport> run(std::span<const float> gradient);
  // Sends all values reliably, so that all replicas are equal to the bit. All ranks must call it. It is needed, for example,
  // before one replica is evaluated or saved.
  Status resync();
  // Collects the exact fp32 values of all parameters from their owners, to evaluate or save them. The replicas do not change.
  // All ranks must call it.
  Status owners_values(std::span<float> values);
  // Sets the learning rate of the optimizer. It must be equal on all ranks.
  void set_rate(double rate);
  uint32_t step() const;  // returns the number of the last completed step

  // Saves the replica, the shard and the optimizer state of this rank. A group of the same size can later continue from them
  // with the same bits. All ranks must call it between two steps, after the same step.
  std::vector<std::byte> save() const;
  // Restores what save() returned. All ranks must call it. After an error, nothing has changed on any rank. Errors:
  // - corrupt: the bytes are truncated or changed.
  // - invalid: another rank saved the bytes, or the number of ranks, the number of parameters, the optimizer, the codec or the
  //   datagram size differs.
  // - invalid: another rank failed to load its bytes, or loaded bytes that were saved after another step.
  Status load(std::span<const std::byte> bytes);
  // Call it on all ranks after Group::reform(). Processes that joined call make() instead. The parameters are divided into new
  // shards. A lost rank's shard is restored from the newest values in the replicas, and its optimizer state from a backup.
  Result<ShardedResumed> resume(const Group& group);
  // Returns the result of the last resume(). If resume() was not called, it returns the result of make().
  const ShardedResumed& resumed() const;

 private:
  explicit ShardedStep(std::unique_ptr<internal::ShardedStepper> stepper);
  std::unique_ptr<internal::ShardedStepper> stepper_;
};

}  // namespace unisono

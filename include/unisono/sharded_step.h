// Training with a sharded optimizer over links that lose packets: every rank owns a shard of the parameters, updates it, and
// sends its values to all ranks.
//
//   auto options = *unisono::ShardedOptions::parse("loss_budget=0.2,clip=1");
//   auto step = unisono::ShardedStep::make(*group, initial, unisono::make_adamw({.rate = 3e-4}), options);
//   while (step->step() < steps) {
//     backward(step->parameters(), gradient);  // the model computes with these parameters
//     auto report = step->run(gradient);       // averages all ranks' gradients, updates the own shard, and sends it
//   }                                          // peer_lost: group->reform(), then step->resume(*group)
//
// Loss up to loss_budget is not repaired. Gradients become an unbiased average of the data that arrived; parameters that do not
// arrive keep their old values. One rank writes each value, and ranks send values, never differences. So replicas lag behind by
// a bounded amount on average, and always agree on which value is newest. After a step without loss all replicas are equal to
// the bit.
//
// Source: "Distributed Training under Packet Loss", arXiv 2507.07114. docs/guides/packet_loss.md derives the rest, and the
// expected drift.
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
  // reliable: everything arrives, over any transport; bit-identical to lossy delivery without loss. lossy needs the transport
  // "udp". It falls back to reliable if so few parameters exist that some rank has no shard (at most 16 (N-1) N in fp32).
  Delivery delivery = Delivery::lossy;
  DeliveryOptions lossy{};  // for both halves; on_empty: automatic means hold
  StepCodec gradients{};    // codec of gradients; plain: fp32
  StepCodec values{};       // codec of parameters. The owner keeps fp32 values, but computes with the decoded ones
  double clip_norm = 0;     // upper limit of the average gradient's norm, by scaling; 0: none
  // A step whose average contains a value that is not finite changes nothing on any rank. clip_norm implies it.
  bool check_finite = false;
  uint32_t stale_max = 16;    // steps; a value about to become this old is requested until it arrives; 0: never
  uint32_t resync_every = 0;  // steps between reliable transfers of all values; 0: never
  // Steps between backups: each shard's optimizer state goes reliably to the next rank, for the loss of its owner; 0: never.
  uint32_t backup_every = 100;
  uint32_t drift_every = 100;  // steps between measurements of the difference between replicas; 0: never
  Milliseconds timeout{0};     // of reliable operations; 0: the group's

  // "delivery=lossy,gradients=plain,values=bf16,clip=1,finite=on,stale_max=16,resync=0,backup=100,drift=100", and whatever
  // DeliveryOptions::parse() reads. Codecs take no options here, and there is no timeout. invalid (bad_option): names the wrong
  // part.
  UNISONO_EXPORT static Result<ShardedOptions> parse(std::string_view text);
  // The text that parse() reads; defaults and options of codecs are left out.
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): names the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const ShardedOptions&, const ShardedOptions&) = default;
};

// Mean squared differences per element: measured, and expected from the observed loss and updates (docs/guides/packet_loss.md).
struct ShardedDrift {
  double owner = 0, owner_expected = 0;  // between a replica and the owner's values
  double pair = 0, pair_expected = 0;    // between two replicas; NaN for two ranks
  // 2p/(1+p) times the second moment of an update: attributed to the paper, unconfirmed, and too small.
  double paper_form = 0;
  // Like pair, but only where exactly one of the two replicas received the last step's values; pair is 2p/(1+p) times this. NaN
  // if there was no such range.
  double gap = 0;
  double second_moment = 0, rho = 0;  // of one step's update; correlation of successive updates
  double loss = 0, recovery = 0;      // share of missing ranges; chance that a missing range arrives in the next step
};

// Report of one step at this rank.
struct ShardedReport {
  uint32_t step = 0;                      // number of the step, from 1
  uint32_t behind = 0;                    // steps that this rank missed
  bool applied = true;                    // false: the average was not finite; nothing has changed
  double gradient_norm = -1;              // of the average over all shards, before clipping; -1: not computed
  double clipped = 1;                     // factor by which gradients were multiplied
  uint32_t scalars_missing = 0;           // ranks whose old norm was used
  uint64_t ranges = 0, stale_ranges = 0;  // of the other ranks' shards; stale: older than this step
  uint32_t age_max = 0;                   // age of the stalest range, in steps
  uint64_t held_ranges = 0;               // of the own shard: no contribution arrived, so they were not updated
  uint64_t fetched_ranges = 0;            // would have become stale_max steps old, and were requested
  std::shared_ptr<const DeliveryReport> gradients, values;  // null: reliable, or this rank missed the step
  // Ranks whose links are gone, or that were silent for three steps and a second. The next run() returns peer_lost.
  std::vector<uint32_t> lost;
  std::optional<ShardedDrift> drift;
  uint64_t sent_bytes = 0;
  int64_t reduce_us = 0, update_us = 0, gather_us = 0, total_us = 0;
  std::vector<std::string> warnings{};  // new in this step

  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// How ranks continue after their group was re-formed.
struct ShardedResumed {
  struct Lost {
    uint32_t rank = 0;                      // of the former group
    uint64_t ranges = 0, stale_ranges = 0;  // of its shard; stale: the newest values are lost
    uint32_t age_max = 0;                   // age of the values used instead, in steps
    // Steps since the backup of its optimizer state that is used now; -1: there is none, and the state starts at zero.
    int64_t state_age = -1;
  };
  uint32_t step = 0;  // the last completed step
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT ShardedStep {
 public:
  // All ranks of the group call it with equal arguments; all take rank 0's parameters. It works in a sub-group of its own. A
  // process that joined a re-formed group calls it while the others call resume(), and gets their parameters. optimizer:
  // updates this rank's shard; equal on all ranks. invalid (bad_option, config_mismatch): options make no sense, or differ
  // between ranks. unsupported: lossy delivery over links without datagrams.
  static Result<ShardedStep> make(const Group& group, std::span<const float> parameters,
                                  std::unique_ptr<ShardOptimizer> optimizer, const ShardedOptions& options = {});
  ShardedStep(ShardedStep&&) noexcept;
  ShardedStep& operator=(ShardedStep&&) noexcept;
  ~ShardedStep();

  // The values that the model computes with. run(), resync(), load() and resume() change them; their memory stays the same.
  std::span<const float> parameters() const;
  // Runs one step. gradient: this rank's, of all parameters. A rank that missed steps continues with the current step of the
  // others, so use step(), not the number of calls. peer_lost, late: re-form the group, and call resume(). invalid: wrong size,
  // or ranks run different steps.
  Result<ShardedReport> run(std::span<const float> gradient);
  // Sends all values reliably, after which all replicas are equal to the bit. All ranks call it, as before they evaluate or
  // save one replica.
  Status resync();
  // Collects the owners' exact fp32 values of all parameters, for evaluation and saving. Replicas do not change. All ranks call
  // it.
  Status owners_values(std::span<float> values);
  // Sets the optimizer's learning rate; equal on all ranks.
  void set_rate(double rate);
  uint32_t step() const;  // the last completed step

  // This rank's replica, shard and optimizer state, for a bit-exact continuation in a group of equal size. Call it between
  // steps, on all ranks after the same step.
  std::vector<std::byte> save() const;
  // All ranks load. corrupt: truncated or changed bytes. invalid: bytes of another rank, number of ranks, or optimizer. An
  // error changes nothing.
  Status load(std::span<const std::byte> bytes);
  // Call after Group::reform() on all ranks; processes that joined call make() instead. Shards are cut anew. Values of a lost
  // rank's shard come from the newest replicas, and its optimizer state from its backup.
  Result<ShardedResumed> resume(const Group& group);
  // How this object began, or the result of the last resume().
  const ShardedResumed& resumed() const;

 private:
  explicit ShardedStep(std::unique_ptr<internal::ShardedStepper> stepper);
  std::unique_ptr<internal::ShardedStepper> stepper_;
};

}  // namespace unisono

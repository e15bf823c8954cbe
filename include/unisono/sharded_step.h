// Training with a sharded optimizer, over links that lose packets: every rank owns a shard of the parameters, updates it, and
// sends its values to all.
//
//   auto step = unisono::ShardedStep::make(*group, initial, unisono::make_adamw({.rate = 3e-4}),
//   *unisono::ShardedOptions::parse("loss_budget=0.2,clip=1")); while (step->step() < steps) {
//     backward(step->parameters(), gradient);   // the model computes with these parameters
//     auto report = step->run(gradient);        // averages the shards of all ranks' gradients, updates the own shard, and
//     sends it
//   }                                           // peer_lost: group->reform(), then step->resume(*group)
//
// Neither half is repaired beyond loss_budget: of gradients an unbiased average of what came is taken, and of parameters that
// do not come the old values are kept. One rank writes each value, and values travel, never differences: replicas lag behind,
// by a bounded amount on average, and never disagree about what is newest. After a step in which everything arrived all of them
// are the same to the bit.
//
// Source: "Distributed Training under Packet Loss", arXiv 2507.07114; what is derived and chosen beside it, and what drift is
// to be expected: docs/guides/packet_loss.md.
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
  // reliable: everything arrives, over any transport; the same to the bit as lossy delivery of which nothing was lost. lossy
  // needs the transport "udp", and is reliable all the same where parameters are so few that some rank has no shard (at most 16
  // (N-1) N of fp32).
  Delivery delivery = Delivery::lossy;
  DeliveryOptions lossy{};  // of both halves; on_empty: automatic is hold
  StepCodec gradients{};    // how they travel; plain: fp32
  StepCodec values{};       // likewise of parameters. The owner keeps fp32 values, and computes with what the others decode
  double clip_norm = 0;     // gradients are scaled so that the norm of the average is at most this; 0: they are not
  bool check_finite =
      false;                // a step whose average is not finite somewhere changes nothing anywhere. (With clip_norm likewise.)
  uint32_t stale_max = 16;  // steps; values that would be as old as that are asked for until they come; 0: never
  uint32_t resync_every = 0;    // steps; all values are sent reliably; 0: never
  uint32_t backup_every = 100;  // steps; the optimizer's state of each shard is sent reliably to the next rank, for when its
                                // owner is lost; 0: never
  uint32_t drift_every = 100;   // steps; how far replicas are apart is measured; 0: never
  Milliseconds timeout{0};      // of what is reliable; 0: the group's

  // "delivery=lossy,gradients=plain,values=bf16,clip=1,finite=on,stale_max=16,resync=0,backup=100,drift=100", and what
  // DeliveryOptions::parse() reads. Codecs without options of their own, and no timeout. invalid (bad_option): the part that is
  // wrong.
  UNISONO_EXPORT static Result<ShardedOptions> parse(std::string_view text);
  // What parse() reads; what has its default is left out. (Options of codecs are, too.)
  UNISONO_EXPORT std::string to_string() const;
  // invalid (bad_option): names the field.
  UNISONO_EXPORT Status check() const;
  friend bool operator==(const ShardedOptions&, const ShardedOptions&) = default;
};

// Mean squared differences per element, as measured and as the formulae of docs/guides/packet_loss.md have them, from the loss
// and the updates that were seen.
struct ShardedDrift {
  double owner = 0, owner_expected = 0;  // a replica and the owner's values
  double pair = 0, pair_expected = 0;    // two replicas; NaN for two ranks
  double paper_form = 0;  // 2p/(1+p) times the second moment of an update: attributed to the paper, unconfirmed, and too small
  double gap =
      0;  // as pair, where only one of the two received the last step's values: 2p/(1+p) times this is pair. NaN without any
  double second_moment = 0, rho = 0;  // of one step's update, and the correlation of neighbouring ones
  double loss = 0, recovery = 0;      // of ranges: missing, and the chance that one that was comes in the next step
};

// Of one step, at this rank.
struct ShardedReport {
  uint32_t step = 0;                      // from 1
  uint32_t behind = 0;                    // steps that the others made while this rank was away
  bool applied = true;                    // false: the average was not finite; nothing has changed
  double gradient_norm = -1;              // of the average over all shards, before it is clipped; -1: nobody asked
  double clipped = 1;                     // what gradients were multiplied with
  uint32_t scalars_missing = 0;           // ranks of which an old norm was taken
  uint64_t ranges = 0, stale_ranges = 0;  // of the others' shards; and how many of them are older than this step
  uint32_t age_max = 0;                   // of those, in steps
  uint64_t held_ranges = 0;               // of the own shard: nothing came for them, so they were not updated
  uint64_t fetched_ranges = 0;            // that would have been stale_max steps old, and were asked for
  std::shared_ptr<const DeliveryReport> gradients, values;  // null: reliable, or this rank was away
  std::vector<uint32_t>
      lost;  // ranks whose links are gone, or that were silent for three steps and a second: the next run() says peer_lost
  std::optional<ShardedDrift> drift;
  uint64_t sent_bytes = 0;
  int64_t reduce_us = 0, update_us = 0, gather_us = 0, total_us = 0;
  std::vector<std::string> warnings{};  // new in this step

  // One line for logs.
  UNISONO_EXPORT std::string to_string() const;
};

// How ranks go on together after their group was re-formed.
struct ShardedResumed {
  struct Lost {
    uint32_t rank = 0;                      // of the former group
    uint64_t ranges = 0, stale_ranges = 0;  // of its shard; and those whose newest values are lost with it
    uint32_t age_max = 0;                   // of what is there instead, in steps
    int64_t state_age =
        -1;  // steps since the backup of its optimizer's state that is used now; -1: there is none, it begins anew
  };
  uint32_t step = 0;  // the last one that was made
  std::vector<Lost> lost{};
};

class UNISONO_EXPORT ShardedStep {
 public:
  // All ranks of the group call it alike; rank 0's parameters are taken by all. It works in a sub-group of its own. A process
  // that has joined a group which was re-formed calls it while the others call resume(), and gets their parameters. optimizer:
  // of this rank's shard, alike on all ranks. invalid (bad_option, config_mismatch): options make no sense, or differ between
  // ranks; unsupported: lossy, and the links carry no datagrams.
  static Result<ShardedStep> make(const Group& group, std::span<const float> parameters,
                                  std::unique_ptr<ShardOptimizer> optimizer, const ShardedOptions& options = {});
  ShardedStep(ShardedStep&&) noexcept;
  ShardedStep& operator=(ShardedStep&&) noexcept;
  ~ShardedStep();

  // What the model computes with; changes in run(), resync(), load() and resume(). Its memory stays the same.
  std::span<const float> parameters() const;
  // One step. gradient: this rank's, of all parameters. A rank that was away joins the step that the others are at, so step()
  // counts, not calls. peer_lost, late: re-form the group, and resume(). invalid: another size, or ranks that do not run the
  // same.
  Result<ShardedReport> run(std::span<const float> gradient);
  // Sends all values reliably: then all replicas are the same to the bit. All ranks call it alike, as before they evaluate or
  // save one replica.
  Status resync();
  // The owners' values as they are, in fp32, of all parameters: what is evaluated and saved. Replicas stay as they are. All
  // ranks call it alike.
  Status owners_values(std::span<float> values);
  // Of the optimizer; alike on all ranks.
  void set_rate(double rate);
  uint32_t step() const;  // the last one that was made

  // This rank's replica, shard and optimizer's state, to go on with to the bit in a group of as many ranks. Between steps; all
  // ranks after the same one.
  std::vector<std::byte> save() const;
  // corrupt: cut or changed; invalid: of another rank, number of ranks, or optimizer. Nothing has changed then. All ranks load
  // alike.
  Status load(std::span<const std::byte> bytes);
  // After Group::reform(): all ranks of the group call it, but those that have joined, which call make(). Shards are cut anew;
  // values of a lost rank's come from the newest replicas, its optimizer's state from its backup.
  Result<ShardedResumed> resume(const Group& group);
  // How this object began, or what resume() said last.
  const ShardedResumed& resumed() const;

 private:
  explicit ShardedStep(std::unique_ptr<internal::ShardedStepper> stepper);
  std::unique_ptr<internal::ShardedStepper> stepper_;
};

}  // namespace unisono

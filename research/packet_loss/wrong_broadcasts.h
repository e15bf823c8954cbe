// Wrong training steps over lossy links, for comparison. Each breaks one rule of the library's ShardedStep, to show the rule's
// purpose.
//
//   zero_parameters   values that do not arrive become zeros. Every rank then computes with an incomplete model.
//   differences       owners send the change of their values, and receivers add the changes that arrive. A lost change is never
//                     repaired, so replicas drift away from the owners and from each other, further with every step.
//
// Gradients are averaged as they should be. Shards, their owners and the optimizer are those of ShardedStep; each step has a
// reliable sum, so no rank runs ahead.
#pragma once

#include <memory>
#include <span>

#include "research/packet_loss/sharded_exchange.h"

namespace language_model {

// The options for codecs, backups and resync_every are ignored. stale_max has no effect: no rank knows what it lacks.
unisono::Result<std::unique_ptr<ShardedExchange>> make_wrong_broadcast(const unisono::Group& group, const ShardedPlan& plan,
                                                                       std::span<const float> parameters,
                                                                       std::unique_ptr<unisono::ShardOptimizer> optimizer);

}  // namespace language_model

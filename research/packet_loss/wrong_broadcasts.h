// Wrong training steps over links that lose packets, for comparison. Each of them breaks one rule of the library's ShardedStep,
// to show why the rule exists.
//
//   zero_parameters   Values that do not arrive become zeros. Every rank then computes with an incomplete model.
//   differences       Owners send the changes of their values, and receivers add the changes that arrive. A change that was
//                     lost is never sent again. Therefore the replicas differ more and more from the owners' values and from
//                     each other.
//
// Gradients are averaged correctly. The shards, their owners and the optimizer are those of ShardedStep. Each step contains a
// sum that is sent reliably, so no rank runs ahead of the others.
#pragma once

#include <memory>
#include <span>

#include "research/packet_loss/sharded_exchange.h"

namespace language_model {

// Ignores the options for codecs and backups, and resync_every. stale_max has no effect either, because the ranks do not know
// which values are missing.
unisono::Result<std::unique_ptr<ShardedExchange>> make_wrong_broadcast(const unisono::Group& group, const ShardedPlan& plan,
                                                                       std::span<const float> parameters,
                                                                       std::unique_ptr<unisono::ShardOptimizer> optimizer);

}  // namespace language_model

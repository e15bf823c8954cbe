// The calls that all exchanges over a group make beside the gradients' own, and their options.
#pragma once

#include <chrono>

#include "unisono/unisono.h"

namespace language_model {

// Plain by name: a codec that the environment gives the group (UNISONO_CODEC) is not meant for losses.
inline constexpr unisono::CallOptions averaging{
    .op = unisono::ReduceOp::avg, .order = unisono::Order::in_rank_order, .codec = unisono::Codec{}};

// Ranks that have nothing to compute wait here for those that compute the reference run: longer than the default deadline.
inline constexpr unisono::CallOptions patient{.timeout = std::chrono::minutes(30)};

}  // namespace language_model

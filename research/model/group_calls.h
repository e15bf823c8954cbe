// Options for collective calls that do not move gradients.
#pragma once

#include <chrono>

#include "unisono/unisono.h"

namespace language_model {

// The codec is plain. Otherwise UNISONO_CODEC could set another codec for the group, and that codec must not encode losses.
inline constexpr unisono::CallOptions averaging{
    .op = unisono::ReduceOp::avg, .order = unisono::Order::in_rank_order, .codec = unisono::Codec{}};

// For calls in which ranks wait until another rank has finished its reference run. That may take longer than the default
// timeout.
inline constexpr unisono::CallOptions long_timeout{.timeout = std::chrono::minutes(30)};

}  // namespace language_model

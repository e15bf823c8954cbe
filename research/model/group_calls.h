// Options of the calls that all exchanges make besides those for the gradients.
#pragma once

#include <chrono>

#include "unisono/unisono.h"

namespace language_model {

// Plain on purpose: a codec that UNISONO_CODEC gives the group must not encode losses.
inline constexpr unisono::CallOptions averaging{
    .op = unisono::ReduceOp::avg, .order = unisono::Order::in_rank_order, .codec = unisono::Codec{}};

// Ranks wait here for those that compute the reference run, which may take longer than the default timeout.
inline constexpr unisono::CallOptions patient{.timeout = std::chrono::minutes(30)};

}  // namespace language_model

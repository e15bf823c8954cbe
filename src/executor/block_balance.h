// The check of an all-to-all that each block has the same size at its sender and at its receiver. It covers the blocks of all
// pairs, so no rank ends with ok although another pair of ranks disagrees.
//
// Reason: only two ranks know the size of a block. The receiver sees a difference in the message. Without the check, a third
// rank whose blocks all fit could end first, and so could the sender.
//
// Each rank adds up the blocks that it sends and subtracts those that it expects. A term is the hash of a size, times a random
// odd weight of (sender, receiver). This share of the rank travels in every message of it. If all pairs agree, each term
// appears once with either sign, so the shares of all ranks add up to 0. If one pair disagrees, the sum is another number but
// once in 2^share_bits cases. An all-to-all is an exchange of all with all, so every rank gets every share. Hence the check
// needs no message of its own, unlike the confirmations of collectives with a root (executor/confirmation.h).
#pragma once

#include <cstdint>

#include "executor/request.h"

namespace unisono {

inline constexpr uint32_t share_bits = 64 - amount_bits;
constexpr uint64_t share_of_sum(uint64_t sum) { return sum & ((uint64_t{1} << share_bits) - 1); }

// Returns the share of rank `self`. The request must be an all-to-all.
uint64_t balance_share(const OperationRequest& request, Rank self, uint32_t world);
// Returns the part of a share that does not depend on the sizes, if all blocks have one size. It takes world multiplications;
// even_share() makes a share of it.
uint64_t even_weight(Rank self, uint32_t world);
uint64_t even_share(uint64_t weight, uint64_t count);

}  // namespace unisono

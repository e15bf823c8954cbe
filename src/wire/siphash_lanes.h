// SipHash of several messages side by side, one in each lane of a vector. Kernels for siphash.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/siphash.h"

namespace unisono {

inline constexpr size_t sip_lanes_max = 8;

struct SipLanes {
  int64_t target = 0;  // Highway's bit for the instruction set; 0: no lanes worth using
  size_t count = 0;    // number of lanes, 4 or 8
  // Computes `count` tags. All heads have one size, a multiple of 8, and all rests have one size. `next` are as many messages
  // that the caller will ask for next, of any size: the kernel prefetches them, because waiting for memory takes longer than
  // computing.
  void (*tags)(const SipMessage* const* messages, const SipMessage* const* next, uint64_t* tags) = nullptr;
};
// The kernels that this build has and this processor can run, the best first. Empty where vectors are shorter than 256 bits:
// there they gain nothing.
std::span<const SipLanes* const> runnable_sip_lanes();

// The tags of all messages, computed by these kernels where several messages have equal sizes. Null: one after the other.
void siphash_by(const SipLanes* lanes, std::span<const SipMessage* const> messages, std::span<uint64_t> tags);

}  // namespace unisono

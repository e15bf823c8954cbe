// SipHash of several messages side by side, one in each lane of a vector: kernels for siphash.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/siphash.h"

namespace unisono {

inline constexpr size_t sip_lanes_max = 8;

struct SipLanes {
  int64_t target = 0;  // Highway's bit for the instruction set; 0: it has no lanes worth using
  size_t count = 0;    // of lanes, 4 or 8
  // Of so many messages, whose heads are of one size, a multiple of 8, and whose rests are of one size too. next: as many that
  // will be asked for next, of any size: meanwhile they are fetched, because waiting for memory takes longer than computing.
  void (*tags)(const SipMessage* const* messages, const SipMessage* const* next, uint64_t* tags) = nullptr;
};
// Those that both this build and this processor have, the best first. None where vectors are shorter than 256 bits: they gain
// nothing.
std::span<const SipLanes* const> runnable_sip_lanes();

// The tags of all messages, by these kernels where several have equal sizes. Null: one after the other.
void siphash_by(const SipLanes* lanes, std::span<const SipMessage* const> messages, std::span<uint64_t> tags);

}  // namespace unisono

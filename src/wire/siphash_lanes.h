// The kernels of siphash.cc. Each computes the SipHash of several messages side by side, and each lane of a vector holds one
// message.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/siphash.h"

namespace unisono {

inline constexpr size_t sip_lanes_max = 8;

struct SipLanes {
  int64_t target = 0;  // Highway's bit for the instruction set; 0: its vectors are too short to be of use
  size_t count = 0;    // number of lanes, 4 or 8
  // Computes the tags of `count` messages. All heads must have the same size, which must be a multiple of 8. All rests must
  // have the same size. `next` holds the `count` messages of the caller's next call; they may have any size. The kernel
  // prefetches them, because it takes longer to wait for memory than to compute.
  void (*tags)(const SipMessage* const* messages, const SipMessage* const* next, uint64_t* tags) = nullptr;
};
// Returns the kernels that this processor can run, the fastest first. The list is empty if the processor's vectors are shorter
// than 256 bits, because such vectors would gain nothing.
std::span<const SipLanes* const> runnable_sip_lanes();

// Computes the tags of all messages. `lanes` is the kernel that computes messages of equal sizes together. If `lanes` is null,
// the tag of each message is computed alone.
void siphash_by(const SipLanes* lanes, std::span<const SipMessage* const> messages, std::span<uint64_t> tags);

}  // namespace unisono

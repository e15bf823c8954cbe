// SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed 64-bit tag for short messages. The keys of links are made with it, too.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "wire/peer_id.h"

namespace unisono {

struct SipKey {
  uint64_t k0 = 0, k1 = 0;
  friend bool operator==(const SipKey&, const SipKey&) = default;
};

// The tag of `head` followed by `rest`; the split does not matter. It is fastest if head.size() is a multiple of 8.
uint64_t siphash_2_4(const SipKey& key, std::span<const std::byte> head, std::span<const std::byte> rest = {});

struct SipMessage {
  SipKey key;
  std::span<const std::byte> head, rest;
};
// Sets tags[i] to the tag of *messages[i]. One tag is a chain of dependent steps. So messages of equal sizes are computed side
// by side where the processor has vectors of 256 bits or more: eight messages of 1472 bytes take the time of one or two.
void siphash_2_4(std::span<const SipMessage* const> messages, std::span<uint64_t> tags);

using GroupKey = std::array<std::byte, 16>;  // random, new for each epoch of a group
// The key for what `sender` sends to `receiver`, both below 65536: docs/design/methods/packet_loss.md, "Keys and refusals".
SipKey link_key(const GroupKey& group, Rank sender, Rank receiver, uint32_t epoch, uint64_t run_id);

}  // namespace unisono

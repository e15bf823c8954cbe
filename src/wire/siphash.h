// SipHash-2-4 (Aumasson and Bernstein, 2012) computes a 64-bit tag from a key and a short message. It also derives the keys of
// links.
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

// Returns the tag of the message that consists of `head` and `rest`. Where the message is split does not matter for the tag.
// The call is fastest if head.size() is a multiple of 8.
uint64_t siphash_2_4(const SipKey& key, std::span<const std::byte> head, std::span<const std::byte> rest = {});

struct SipMessage {
  SipKey key;
  std::span<const std::byte> head, rest;
};
// Sets tags[i] to the tag of *messages[i]. Within one tag, each step needs the result of the step before. So the tags of
// messages with equal sizes are computed side by side, if the processor has vectors of at least 256 bits. Eight messages of
// 1472 bytes then take as long as one or two.
void siphash_2_4(std::span<const SipMessage* const> messages, std::span<uint64_t> tags);

using GroupKey = std::array<std::byte, 16>;  // random bytes; each epoch of a group has new ones
// Derives the key for the datagrams from `sender` to `receiver`. Both ranks must be below 65536. See
// docs/design/methods/packet_loss.md, "Keys and refusals".
SipKey link_key(const GroupKey& group, Rank sender, Rank receiver, uint32_t epoch, uint64_t run_id);

}  // namespace unisono

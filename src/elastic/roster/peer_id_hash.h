// The hash function with which hash tables use a PeerId as key.
#pragma once

#include <cstddef>

#include "wire/peer_id.h"

namespace unisono {

struct PeerIdHash {
  size_t operator()(const PeerId& id) const noexcept { return static_cast<size_t>(id.low ^ (id.high * 0x9E3779B97F4A7C15ull)); }
};

}  // namespace unisono

// How far a rank of a group is in its calls: how many of each kind it has begun, lossy ones (and automatic ones of their kind)
// and those that are numbered by order of calls. They have numbers of their own, but one order, which has to be the same on all
// ranks.
//
// Seen as points (lossy, reliable), the calls of a rank are a path that goes up by one in one direction at a time. Any point of
// one rank's path must lie on all others', or ahead of them; that can be judged from single points, whatever is in flight at
// once. Nothing else is: calls with an id, messages.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/bytes.h"
#include "executor/request.h"
#include "unisono/status.h"
#include "wire/peer_id.h"

namespace unisono {

struct CallPosition {
  static constexpr uint8_t kind = 2;  // the first byte of such a message between lossy groups

  Rank rank = 0;          // that is at this position
  uint32_t lossy = 0;     // calls begun, so the number of the next
  uint64_t reliable = 0;  // likewise
  bool in_lossy = false;  // what `call`, the one that it waits in, is
  CallDescriptor call{};

  // u8 kind, u32 rank, u32 lossy, u64 reliable, u8 in lossy, u32 descriptor, u64 amount.
  Bytes encode() const;
  // corrupt: too short, or too long.
  static Result<CallPosition> decode(ByteView bytes);
  // "calls all_reduce(f32 sum, 10 elements, ring) with reliable delivery, after 3 lossy and 5 other calls"
  std::string text() const;
};

// The calls of a group beside the lossy ones, as far as their order goes; the engine's.
struct ReliableCalls {
  std::function<uint64_t()> begun{};
  // One that is under way.
  std::function<std::optional<CallDescriptor>(uint64_t number)> under_way{};
  // Ends it here and, with its frames, elsewhere.
  std::function<void(uint64_t number, const Status& why)> fail{};
};

}  // namespace unisono

// The position of a rank in its sequence of calls: the numbers of lossy and of reliable calls that it has begun. An automatic
// call counts as lossy. Lossy and reliable calls are numbered separately, but all ranks must make them in one common order.
//
// The positions (lossy, reliable) of a rank form a path, because each call increases one coordinate by 1. Two ranks call in the
// same order exactly if their paths agree. A rank therefore needs only one point of another rank's path: if the point is not on
// its own path, the orders differ. Calls with an id and point-to-point messages have no order, and are not compared.
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
  static constexpr uint8_t kind = 2;  // The first byte of a position message, which lossy groups send to each other.

  Rank rank = 0;          // the rank at this position
  uint32_t lossy = 0;     // number of lossy calls that the rank has begun, which is also the number of the next one
  uint64_t reliable = 0;  // number of reliable calls that the rank has begun
  bool in_lossy = false;  // true: `call`, the call in which the rank waits, is lossy
  CallDescriptor call{};

  // The bytes are: u8 kind, u32 rank, u32 lossy, u64 reliable, u8 in_lossy, u32 descriptor, u64 amount.
  Bytes encode() const;
  // Error corrupt: the message is too short or too long.
  static Result<CallPosition> decode(ByteView bytes);
  // Returns, for example, "calls all_reduce(f32 sum, 10 elements, ring) with reliable delivery, after 3 lossy and 5 other
  // calls".
  std::string text() const;
};

// Functions through which a lossy group asks about the reliable calls of the same group, in order to compare the order of
// calls. The engine sets them.
struct ReliableCalls {
  std::function<uint64_t()> begun{};
  // Returns the call with this number if it is still running.
  std::function<std::optional<CallDescriptor>(uint64_t number)> running_call{};
  // Ends the call with `why` on this rank, and notifies the other members, so that the call also ends there.
  std::function<void(uint64_t number, const Status& why)> fail{};
};

}  // namespace unisono

// Per-partner flow of one operation: how much may be sent before the receiver has opened the operation, and how far ahead of
// the receiver's work a sender may run.
//
// The receiver's unexpected memory is bounded by eager_bytes per (operation, partner), its staging by window_bytes. A sender whose
// total is at most eager_bytes never waits for a grant, and its receiver never sends one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

struct FlowLimits {
  uint64_t eager_bytes = 256u << 10;
  uint64_t window_bytes = 8u << 20;
};

struct Flow {
  // Sending to the partner.
  uint64_t send_total = 0, send_used = 0, send_allowed = 0;
  int32_t queue_head = -1, queue_tail = -1;  // lanes waiting for room or a grant (Operation::items_)
  // Receiving from it.
  uint64_t recv_total = 0, recv_arrived = 0, recv_consumed = 0, recv_granted = 0;
  Nanos first_arrival = never;

  void open(const FlowLimits& limits) {
    send_allowed = send_total <= limits.eager_bytes ? send_total : limits.eager_bytes;
    recv_granted = recv_total <= limits.eager_bytes ? recv_total : limits.eager_bytes;
  }
  bool may_send(uint64_t bytes) const { return send_used + bytes <= send_allowed; }
  // The grant to announce now, or 0: at the start, and whenever half a window has been used up since the last one.
  uint64_t next_grant(const FlowLimits& limits) {
    const uint64_t target = std::min(recv_total, recv_consumed + limits.window_bytes);
    const bool due = target > recv_granted && (target == recv_total || target - recv_granted >= limits.window_bytes / 2);
    return due ? recv_granted = target : 0;
  }
};

}  // namespace unisono

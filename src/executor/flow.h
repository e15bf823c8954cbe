// Per-partner flow of one operation: how much may be sent before the receiver has opened the operation, and how far ahead of
// the receiver's work a sender may run.
//
// The receiver's unexpected memory is bounded by eager_bytes per (operation, partner), its staging by window_bytes. A sender
// whose total is at most eager_bytes never waits for a grant, and its receiver never sends one.
//
// Slices may be ready in another order on each rank. So the window of every link can be full of slices that wait for a message
// which another full window keeps back. Therefore a sender may overdraw by one message, of the first slice that it has not
// finished: the first slice of all that is unfinished anywhere can always go on. The receiver answers an overdraft as soon as
// it can.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

struct FlowLimits {
  uint64_t eager_bytes = 256u << 10;
  uint64_t window_bytes = 8u << 20;
  // Partners that share less than this have larger windows: with a small one, who is ahead waits for who is behind, and their
  // links idle.
  uint64_t staging_bytes = 96u << 20;
};

// How long an operation that has no room waits for those before it: this part of its time-out, at most so long.
inline constexpr int patience_part = 4;
inline constexpr Nanos patience_max = second;

// Messages that wait for room or a grant, as a list in Operation::items_.
struct SendQueue {
  int32_t head = -1, tail = -1;
  bool empty() const { return head < 0; }
};

struct Flow {
  // Sending to the partner.
  uint64_t send_total = 0, send_used = 0, send_allowed = 0;
  uint64_t sent_messages = 0, received_messages = 0;
  SendQueue results{}, contributions{};  // each in its order; results have room of their own and pass the others
  // Receiving from it.
  uint64_t recv_total = 0, recv_arrived = 0, recv_consumed = 0, recv_granted = 0;
  Nanos first_arrival = never;
  bool opened = false;            // the partner runs the operation: it has granted something
  bool credit_requested = false;  // it was asked to give back what is lent to it, and no room came since
  bool credit_requested_ever = false;
  bool copies = false;  // it has asked for that

  void open(const FlowLimits& limits) {
    send_allowed = send_total <= limits.eager_bytes ? send_total : limits.eager_bytes;
    recv_granted = recv_total <= limits.eager_bytes ? recv_total : limits.eager_bytes;
  }
  bool waits_to_send() const { return !results.empty() || !contributions.empty(); }
  bool may_send(uint64_t bytes) const { return send_used + bytes <= send_allowed; }
  // Only for the first unfinished slice.
  bool may_overdraw() const { return opened && send_used <= send_allowed; }
  bool is_overdrawn() const { return recv_arrived > recv_granted; }
  // The grant to announce at the start, or 0. It may allow nothing new: it says that the operation runs here.
  uint64_t first_grant(const FlowLimits& limits) {
    if (recv_total <= limits.eager_bytes) return 0;
    return recv_granted = std::max(recv_granted, std::min(recv_total, limits.window_bytes));
  }
  // The grant to announce now, or 0: whenever half a window has been used up since the last one, or the sender has overdrawn
  // it.
  uint64_t next_grant(const FlowLimits& limits) {
    const uint64_t target = std::min(recv_total, recv_consumed + limits.window_bytes);
    const bool due =
        target > recv_granted && (target == recv_total || target - recv_granted >= limits.window_bytes / 2 || is_overdrawn());
    return due ? recv_granted = target : 0;
  }
};

}  // namespace unisono

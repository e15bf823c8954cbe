// Per-partner flow of one operation: how much may be sent before the receiver has opened the operation, and how far ahead of
// the receiver's work a sender may run.
//
// The receiver's unexpected memory is bounded by eager_bytes per (operation, partner), its staging by window_bytes. A sender
// whose total is at most eager_bytes never waits for a grant, and its receiver never sends one.
//
// Ranks may finish slices in different orders. Then every link's window can be full of slices that each wait for a message
// which another full window holds back. Therefore a sender may overdraw its window by one message of its first unfinished
// slice. The globally first unfinished slice can then always continue. The receiver answers an overdraft as soon as it can.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

struct FlowLimits {
  uint64_t eager_bytes = 256u << 10;
  uint64_t window_bytes = 8u << 20;
  // Partners whose total share is below this get larger windows. With a small window, a rank that is ahead waits for one that
  // is behind, and their links idle.
  uint64_t staging_bytes = 96u << 20;
};

// How long an operation without send credit waits for earlier operations: this fraction of its timeout, up to the maximum.
inline constexpr int patience_part = 4;
inline constexpr Nanos patience_max = second;

// Messages that wait for send credit or a grant, as a list in Operation::items_.
struct SendQueue {
  int32_t head = -1, tail = -1;
  bool empty() const { return head < 0; }
};

struct Flow {
  // Sending to the partner.
  uint64_t send_total = 0, send_used = 0, send_allowed = 0;
  uint64_t sent_messages = 0, received_messages = 0;
  SendQueue results{}, contributions{};  // each in order; results have send credit of their own and overtake contributions
  // Receiving from it.
  uint64_t recv_total = 0, recv_arrived = 0, recv_consumed = 0, recv_granted = 0;
  Nanos first_arrival = never;
  bool opened = false;            // the partner runs the operation: it has sent a grant
  bool credit_requested = false;  // the partner was asked to return our memory, and no send credit came since
  bool credit_requested_ever = false;
  bool copies = false;  // the partner asked this rank to keep copies

  void open(const FlowLimits& limits) {
    send_allowed = send_total <= limits.eager_bytes ? send_total : limits.eager_bytes;
    recv_granted = recv_total <= limits.eager_bytes ? recv_total : limits.eager_bytes;
  }
  bool waits_to_send() const { return !results.empty() || !contributions.empty(); }
  bool may_send(uint64_t bytes) const { return send_used + bytes <= send_allowed; }
  // Only for a message of the first unfinished slice.
  bool may_overdraw() const { return opened && send_used <= send_allowed; }
  bool is_overdrawn() const { return recv_arrived > recv_granted; }
  // The grant to announce at the start, or 0. It may allow nothing new; it then tells the partner that the operation runs here.
  uint64_t first_grant(const FlowLimits& limits) {
    if (recv_total <= limits.eager_bytes) return 0;
    return recv_granted = std::max(recv_granted, std::min(recv_total, limits.window_bytes));
  }
  // The grant to announce now, or 0. A grant is due when half a window was used up since the last one, or the sender overdrew
  // its window.
  uint64_t next_grant(const FlowLimits& limits) {
    const uint64_t target = std::min(recv_total, recv_consumed + limits.window_bytes);
    const bool due =
        target > recv_granted && (target == recv_total || target - recv_granted >= limits.window_bytes / 2 || is_overdrawn());
    return due ? recv_granted = target : 0;
  }
};

}  // namespace unisono

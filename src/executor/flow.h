// Flow control between this rank and one partner, for one operation. It limits how much a sender may send before the receiver
// has started the operation, and how far a sender may run ahead of the receiver.
//
// For each operation and partner, a receiver buffers at most eager_bytes of unexpected messages, and keeps at most window_bytes
// in staging memory. If the total of a sender is at most eager_bytes, it never waits for a grant (the permission to send more),
// and its receiver never sends one.
//
// Ranks may finish slices in different orders. Then all windows can be full of messages of later slices, and the messages for
// which the ranks wait do not fit. To prevent this deadlock, a sender may exceed its window by one message of its first
// unfinished slice. The receiver then sends a grant as soon as it can. The first unfinished slice of all ranks therefore always
// makes progress.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

struct FlowLimits {
  uint64_t eager_bytes = 256u << 10;
  uint64_t window_bytes = 8u << 20;
  // The staging memory for all partners together. Each window has at least an equal share of it. With a small window, a rank
  // that is ahead soon waits for a rank that is behind, and the links between them are idle.
  uint64_t staging_bytes = 96u << 20;
};

// An operation without send credit first waits for earlier operations. It waits for timeout / credit_wait_divisor, but at most
// for credit_wait_max.
inline constexpr int credit_wait_divisor = 4;
inline constexpr Nanos credit_wait_max = second;

// The messages that wait for send credit or for a grant. They form a list in Operation::items_.
struct SendQueue {
  int32_t head = -1, tail = -1;
  bool empty() const { return head < 0; }
};

struct Flow {
  // The data that this rank sends to the partner, in bytes.
  uint64_t send_total = 0, send_used = 0, send_allowed = 0;
  uint64_t sent_messages = 0, received_messages = 0;
  // The messages of each queue are sent in order. Results use separate send credit, and overtake contributions.
  SendQueue results{}, contributions{};
  // The data that this rank receives from the partner, in bytes.
  uint64_t recv_total = 0, recv_arrived = 0, recv_consumed = 0, recv_granted = 0;
  Nanos first_arrival = never;
  bool opened = false;  // true: a grant has arrived, so the partner has started the operation
  // true: this rank has asked the partner to return memory, and no send credit has arrived since
  bool credit_requested = false;
  bool credit_requested_ever = false;
  bool copies = false;  // true: the partner has asked this rank to copy its messages and return their memory

  void open(const FlowLimits& limits) {
    send_allowed = send_total <= limits.eager_bytes ? send_total : limits.eager_bytes;
    recv_granted = recv_total <= limits.eager_bytes ? recv_total : limits.eager_bytes;
  }
  bool waits_to_send() const { return !results.empty() || !contributions.empty(); }
  bool may_send(uint64_t bytes) const { return send_used + bytes <= send_allowed; }
  // Returns true if the sender may exceed its window by one message of its first unfinished slice.
  bool may_overdraw() const { return opened && send_used <= send_allowed; }
  bool is_overdrawn() const { return recv_arrived > recv_granted; }
  // Returns the grant to send at the start, or 0 if none is needed. The grant also tells the partner that this rank has started
  // the operation, even if it permits no further bytes.
  uint64_t first_grant(const FlowLimits& limits) {
    if (recv_total <= limits.eager_bytes) return 0;
    return recv_granted = std::max(recv_granted, std::min(recv_total, limits.window_bytes));
  }
  // Returns the grant to send now, or 0 if none is due. A grant is due when half a window was consumed since the previous
  // grant. The last grant is due earlier. So is a grant for a sender that has exceeded its window.
  uint64_t next_grant(const FlowLimits& limits) {
    const uint64_t target = std::min(recv_total, recv_consumed + limits.window_bytes);
    const bool due =
        target > recv_granted && (target == recv_total || target - recv_granted >= limits.window_bytes / 2 || is_overdrawn());
    return due ? recv_granted = target : 0;
  }
};

}  // namespace unisono

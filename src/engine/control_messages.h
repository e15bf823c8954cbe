// Frames that belong to no operation's data: membership messages, failures, goodbyes. Each is delivered in order of calls to
// one peer, or not at all if its link ends. A message without credit waits here; a failure goes out at once.
//
// Owns the payloads until the transport says that they are sent. Never blocks. The engine owns it and hands it the transports'
// events.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/bytes.h"
#include "engine/peer_table.h"
#include "wire/frame.h"

namespace unisono {

// Identifies a send or a computation of an operation: slot 16 bits | generation 16 | lane 32.
constexpr uint64_t event_id(uint32_t slot, uint32_t generation, uint32_t lane) {
  return uint64_t{slot & 0xFFFF} << 48 | uint64_t{generation & 0xFFFF} << 32 | lane;
}
inline constexpr uint32_t control_slot = 0xFFFF;  // of control messages, which share the ids with operations

class ControlMessages {
 public:
  explicit ControlMessages(PeerTable& peers) : peers_(peers) {}

  // Does nothing if the link to the peer has ended. Several messages may share one payload.
  void send(PeerIndex to, FrameHeader header, std::shared_ptr<Bytes> payload);
  // A membership message: opaque here.
  void send_control(PeerIndex to, std::shared_ptr<Bytes> message);
  // Tells a peer that it was removed from the group. It needs no credit.
  void send_goodbye(PeerIndex to, uint32_t epoch);

  static bool owns(uint64_t id) { return id >> 48 == control_slot; }
  // The transport has sent the frame with this id.
  void on_sent(uint64_t id) { in_flight_.erase(id); }
  // The peer has given credit: sends what waits for it.
  void on_credit(PeerIndex peer);
  size_t in_flight() const { return in_flight_.size(); }

 private:
  PeerTable& peers_;
  std::unordered_map<uint64_t, std::shared_ptr<Bytes>> in_flight_;
  uint64_t next_id_ = 0;
};

}  // namespace unisono

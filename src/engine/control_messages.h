// Sends control frames. They carry no data of operations, but membership messages, failures and goodbyes. All frames to one
// peer arrive in the order of the calls. If the link to the peer ends, the remaining frames do not arrive. A frame without send
// credit waits in this object. A failure is sent at once.
//
// The engine owns this object, and passes the transports' events to it. The object owns the payloads until they are sent. It
// never blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/bytes.h"
#include "engine/peer_table.h"
#include "wire/frame.h"

namespace unisono {

// Returns the id of a send or a computation of an operation. Bits: slot 16 | generation 16 | lane 32.
constexpr uint64_t event_id(uint32_t slot, uint32_t generation, uint32_t lane) {
  return uint64_t{slot & 0xFFFF} << 48 | uint64_t{generation & 0xFFFF} << 32 | lane;
}
// Control frames use this number in place of a slot, because their ids share the id space with those of operations.
inline constexpr uint32_t control_slot = 0xFFFF;

class ControlMessages {
 public:
  explicit ControlMessages(PeerTable& peers) : peers_(peers) {}

  // Does nothing if the link to the peer has ended. Several messages may share one payload.
  void send(PeerIndex to, FrameHeader header, std::shared_ptr<Bytes> payload);
  // Sends a membership message. This class does not interpret it.
  void send_control(PeerIndex to, std::shared_ptr<Bytes> message);
  // Takes back what is not sent yet of the sends of this payload, which has gone to this peer alone. A frame that the transport
  // has begun still arrives.
  void cancel(PeerIndex to, const std::shared_ptr<Bytes>& payload);
  // Tells a peer that it was removed from the group. It needs no credit.
  void send_goodbye(PeerIndex to, uint32_t epoch);

  static bool owns(uint64_t id) { return id >> 48 == control_slot; }
  // Call it when the transport has sent the frame with this id.
  void on_sent(uint64_t id) { in_flight_.erase(id); }
  // Call it when the peer has given send credit. Sends the frames that waited for this credit.
  void on_credit(PeerIndex peer);
  size_t in_flight() const { return in_flight_.size(); }

 private:
  PeerTable& peers_;
  std::unordered_map<uint64_t, std::shared_ptr<Bytes>> in_flight_;
  uint64_t next_id_ = 0;
};

}  // namespace unisono

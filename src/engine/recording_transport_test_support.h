// A fake transport for tests of the engine's parts. It keeps what was sent and what was cancelled. Tests set its credit, and
// decide when sends finish.
#pragma once

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/concat.h"
#include "engine/peer_table.h"

namespace unisono {

class RecordingTransport final : public Transport {
 public:
  struct Sent {
    PeerIndex to = 0;
    FrameHeader header;
    Bytes payload;
    uint64_t id = 0;
  };
  std::vector<Sent> sent;
  std::vector<Cancellation> cancelled;
  size_t allowed = 100;      // credit per peer; each frame with payload uses one unit
  size_t slots_bytes = 0;    // the value that slot_bytes() returns
  bool done_at_once = true;  // whether a send is finished when send() returns

  const char* name() const override { return "recording"; }
  size_t credit(PeerIndex) override { return allowed; }
  size_t slot_bytes() const override { return slots_bytes; }
  Slot acquire(std::span<const PeerIndex>, size_t, bool) override { return {}; }
  void commit(const Slot&, const FrameHeader&) override {}
  void abandon(const Slot&) override {}
  bool send(PeerIndex to, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override {
    sent.push_back({to, header, Bytes(payload.begin(), payload.end()), id});
    if (!payload.empty() && allowed > 0) --allowed;
    return done_at_once;
  }
  void release(const View&) override {}
  void cancel(const Cancellation& what) override { cancelled.push_back(what); }
  bool poll(Nanos, Sink&) override { return false; }
  Nanos next_deadline() const override { return never; }
  void close(PeerIndex) override {}
  int wait_handle() const override { return -1; }
  bool arm() override { return true; }
  void disarm() override {}
  TransportCounters counters() const override { return {}; }
  std::string describe(PeerIndex) const override { return "recording"; }
};

// Returns a table of `count` peers over one transport.
inline PeerTable peers_over(RecordingTransport& transport, size_t count) {
  PeerTable peers(count);
  for (size_t i = 0; i < count; ++i) {
    peers[i].route = &transport;
    peers[i].label = concat("peer ", i);
  }
  return peers;
}

}  // namespace unisono

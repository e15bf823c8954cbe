// The transport of one virtual process. Through it, the process uses the Network and reaches all of its peers.
#pragma once

#include <string>

#include "base/concat.h"
#include "sim/network.h"
#include "transports/transport.h"

namespace unisono::sim {

class SimTransport final : public Transport {
 public:
  SimTransport(Network& network, PeerIndex self) : network_(network), self_(self) {}

  const char* name() const override { return "sim"; }
  size_t credit(PeerIndex peer) override { return network_.credit(self_, peer); }
  size_t slot_bytes() const override { return network_.settings().views_use_queue ? payload_bytes_max : 0; }
  Slot acquire(std::span<const PeerIndex> peers, size_t bytes, bool result) override {
    return network_.acquire(self_, peers, bytes, result);
  }
  void commit(const Slot& slot, const FrameHeader& header) override { network_.commit(self_, slot, header); }
  void abandon(const Slot& slot) override { network_.abandon(self_, slot); }
  bool send(PeerIndex peer, const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) override {
    return network_.send(self_, peer, header, payload, id);
  }
  bool release_acknowledged(uint64_t match, uint64_t mask) override {
    return network_.release_acknowledged(self_, match, mask);
  }
  void release_early(uint64_t match, uint64_t mask) override { network_.release_early(self_, match, mask); }
  void release(const View& view) override { network_.release(self_, view); }
  void cancel(const Cancellation& what) override { network_.cancel(self_, what); }
  bool poll(Nanos, Sink& sink) override { return network_.poll(self_, sink); }
  Nanos next_deadline() const override { return never; }  // arrivals are events of the network, which cause polls
  void close(PeerIndex peer) override { network_.close(self_, peer); }
  int wait_handle() const override { return -1; }
  bool arm() override { return !network_.has_events(self_); }
  void disarm() override {}
  TransportCounters counters() const override { return network_.counters_of(self_); }
  std::string describe(PeerIndex peer) const override { return concat("sim ", self_, " -> ", peer); }

 private:
  Network& network_;
  PeerIndex self_;
};

}  // namespace unisono::sim

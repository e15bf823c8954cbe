// Datagrams on their way to one socket: gathered, sealed, given to the network in batches.
//
// What the network takes is gone; what it does not take now (its queue is full) stays here, payload copied, and goes first next
// time. Until then nothing new may be added, so that whoever sends learns that it must wait, and no memory of a sender is kept
// after flush().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "net/datagram_socket.h"

namespace unisono {

// Of one receiver of datagrams: what became of them on this host.
struct UdpSendCounters {
  uint64_t datagrams = 0, bytes = 0;
  uint64_t firewalled = 0;      // EPERM
  uint64_t too_long = 0;        // EMSGSIZE
  uint32_t too_long_bytes = 0;  // of the shortest of them; who has seen it sets it back to 0
  uint64_t failed = 0;          // no route and the like
  bool confirm = false;         // say it with its next datagram: OutDatagram::confirms
};

class UdpOutbox {
 public:
  static constexpr size_t batch = datagrams_per_batch;

  // scratch_bytes: of the largest payload that is not sent from where it lies.
  UdpOutbox(DatagramSocket& socket, size_t scratch_bytes);

  // Room for so many more; 0 while the network takes nothing.
  size_t credit() const { return blocked_ ? 0 : batch - count_; }
  bool empty() const { return count_ == 0; }
  bool blocked() const { return blocked_; }
  // Memory for the payload of the datagram that is added next.
  std::byte* scratch() { return scratch_.get() + count_ * scratch_bytes_; }
  // credit() > 0. Sealed when the batch leaves. `to` and `counters` must live until then; the payload until flush(). Full
  // batches are flushed by the caller.
  void add(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal,
           UdpSendCounters& counters);
  // The same for one that is sealed.
  void add_sealed(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                  UdpSendCounters& counters);
  // Gives everything to the network. True if all of it was taken.
  bool flush();
  // Drops what waits for this receiver, whose address and counters go away.
  void forget(const UdpSendCounters& counters);
  // ENOBUFS: the handle says nothing about when it ends.
  bool wants_time() const { return blocked_ && wants_time_; }
  DatagramSocket& socket() const { return socket_; }

 private:
  void seal();
  void keep_rest(size_t from);

  DatagramSocket& socket_;
  size_t scratch_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
  std::array<OutDatagram, batch> datagrams_;
  std::array<UdpSendCounters*, batch> counters_{};
  std::array<DatagramTagged, batch> tagged_;
  size_t count_ = 0, sealed_ = 0;  // sealed_: of the first ones
  bool blocked_ = false, wants_time_ = false;
};

}  // namespace unisono

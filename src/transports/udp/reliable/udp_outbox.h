// Datagrams on their way to one socket: collected, sealed, and given to the network in batches.
//
// Datagrams that the network does not take now (its queue is full) stay here with a copied payload, and go first next time.
// Until then no new ones may be added, so the sender learns that it must wait. After flush() no memory of a sender is used any
// more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "net/datagram_socket.h"

namespace unisono {

// Counters of one receiver: what happened to its datagrams on this host.
struct UdpSendCounters {
  uint64_t datagrams = 0, bytes = 0;
  uint64_t firewalled = 0;      // EPERM
  uint64_t too_long = 0;        // EMSGSIZE
  uint32_t too_long_bytes = 0;  // the shortest of them; the reader sets it back to 0
  uint64_t failed = 0;          // no route and the like
  bool confirm = false;         // set OutDatagram::confirms in its next datagram
};

class UdpOutbox {
 public:
  static constexpr size_t batch = datagrams_per_batch;

  // scratch_bytes: the largest payload that has no memory of its own.
  UdpOutbox(DatagramSocket& socket, size_t scratch_bytes);

  // How many more datagrams may be added; 0 while the network takes nothing.
  size_t credit() const { return blocked_ ? 0 : batch - count_; }
  bool empty() const { return count_ == 0; }
  bool blocked() const { return blocked_; }
  // Memory for the payload of the next datagram to be added.
  std::byte* scratch() { return scratch_.get() + count_ * scratch_bytes_; }
  // Adds a datagram; requires credit() > 0. It is sealed when the batch leaves. `to` and `counters` must live until then, and
  // the payload until flush(). The caller flushes full batches.
  void add(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal,
           UdpSendCounters& counters);
  // Adds a datagram that is sealed already.
  void add_sealed(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                  UdpSendCounters& counters);
  // Gives everything to the network. True if it took all.
  bool flush();
  // Drops the datagrams for this receiver, whose address and counters go away.
  void forget(const UdpSendCounters& counters);
  // True after ENOBUFS: the handle does not show when the network takes datagrams again.
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
  size_t count_ = 0, sealed_ = 0;  // sealed_: how many of the first ones are sealed
  bool blocked_ = false, wants_time_ = false;
};

}  // namespace unisono

// Collects the datagrams for one socket, seals them, and passes them to the network in batches.
//
// If the network's queue is full, the outbox keeps the datagrams that are left, with copies of their payloads. The next flush()
// sends these datagrams first. Until then no datagram may be added; this tells the caller to wait. After flush(), the outbox
// uses no memory of a caller any more.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "net/datagram_socket.h"
#include "tls/datagram_seal.h"

namespace unisono {

// The outcome of sending on this host, for the datagrams to one receiver.
struct UdpSendCounters {
  uint64_t datagrams = 0, bytes = 0;
  uint64_t firewalled = 0;      // sends that failed with EPERM
  uint64_t too_long = 0;        // sends that failed with EMSGSIZE
  uint32_t too_long_bytes = 0;  // Size of the shortest datagram that was too long. The reader sets it back to 0.
  uint64_t failed = 0;          // sends that failed with another error, such as a missing route
  bool confirm = false;         // a request: OutDatagram::confirms must be set in the next datagram for this receiver
  bool alone = false;           // a request: OutDatagram::alone must be set in all datagrams for this receiver
};

class UdpOutbox {
 public:
  static constexpr size_t batch = datagrams_per_batch;
  // Encrypted payloads wait in the scratch memory. If they were more, they would leave the cache before the kernel reads them.
  static constexpr size_t encrypted_bytes_max = 256u << 10;

  // scratch_bytes must be the size of the largest payload that is written into scratch().
  UdpOutbox(DatagramSocket& socket, size_t scratch_bytes);

  // Returns how many more datagrams may be added. The result is 0 while the network takes nothing.
  size_t credit() const { return blocked_ || encrypted_bytes_ >= encrypted_bytes_max ? 0 : batch - count_; }
  bool empty() const { return count_ == 0; }
  bool blocked() const { return blocked_; }
  // Returns memory for the payload of the datagram that is added next.
  std::byte* scratch() { return scratch_.get() + count_ * stride_ + encryption_bytes; }
  // Adds a datagram, which flush() will seal. Call this only if credit() > 0; if credit() is 0, call flush(). `payload` must
  // stay valid until flush(). `to` and `counters` must stay valid until the datagram has left the outbox.
  void add(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload, const DatagramSeal& seal,
           UdpSendCounters& counters);
  // Adds a datagram that is encrypted at once, so `payload` need not stay valid. `number` is the datagram's number in its
  // series; header.flow_seq is the low half.
  void add_encrypted(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                     DatagramSealer& sealer, uint64_t number, UdpSendCounters& counters);
  // Adds a datagram that is sealed already.
  void add_sealed(const TcpAddress& to, const DatagramHeader& header, std::span<const std::byte> payload,
                  UdpSendCounters& counters);
  // Passes all datagrams to the network. Returns true if the outbox is empty afterwards.
  bool flush();
  // Drops all datagrams for the receiver that has these counters. Call this before its address and counters are freed.
  void forget(const UdpSendCounters& counters);
  // Returns true after ENOBUFS. In this case the socket's handle does not show when the network takes datagrams again.
  bool wants_time() const { return blocked_ && wants_time_; }
  DatagramSocket& socket() const { return socket_; }

 private:
  void seal();
  void keep_rest(size_t from);

  DatagramSocket& socket_;
  // In each piece of the scratch memory, the payload comes behind space for the second half of a tag of 16 bytes.
  size_t scratch_bytes_, stride_;
  std::unique_ptr<std::byte[]> scratch_;
  std::array<OutDatagram, batch> datagrams_;
  std::array<UdpSendCounters*, batch> counters_{};
  std::array<DatagramTagged, batch> tagged_;
  size_t encrypted_bytes_ = 0;     // so much was encrypted since the last flush()
  size_t count_ = 0, sealed_ = 0;  // The first sealed_ of the count_ datagrams are sealed.
  bool blocked_ = false, wants_time_ = false;
};

}  // namespace unisono

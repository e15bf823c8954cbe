// A UDP socket of the kernel: the only file of the UDP transport with system calls for data.
//
// No datagram is fragmented. The kernel gets datagrams in batches, with header and payload from their own memory. Where the
// kernel can, a run of datagrams of one size to one address is one message (segmentation offload), and such runs are also
// received as one. A socket has one address family. It reads clocks for one purpose: to convert the kernel's arrival times to
// CLOCK_MONOTONIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "net/datagram_socket.h"
#include "net/socket_address.h"
#include "net/tcp_socket.h"
#include "unisono/status.h"

namespace unisono {

struct UdpSocketOptions {
  TcpAddress address{};                 // of an interface, or the wildcard; port 0: the kernel chooses
  uint32_t datagram_bytes_max = 65507;  // the longest datagram that is received whole
  int receive_buffer_bytes = 16 << 20;  // requested; the kernel may give less
  int send_buffer_bytes = 4 << 20;
  bool segmentation_offload = true;  // for sending
  // Costs 64 KiB per buffer of the ring, whatever datagram_bytes_max is. own_drops then counts a dropped run as one datagram.
  bool receive_offload = true;
};

struct UdpSocketCounters {
  uint64_t sent = 0, received = 0;  // datagrams
  uint64_t sent_calls = 0, received_calls = 0;
  uint64_t sent_in_runs = 0;  // those of `sent` that went through segmentation offload
  uint64_t refused = 0;       // network errors about sent datagrams (closed port, unreachable host)
};

// The total of a 32-bit counter that only grows, and wraps. Its values may arrive in any order, less than half its range apart.
class WrappingCount {
 public:
  void saw(uint32_t count) {
    const uint32_t more = count - latest_;
    if (static_cast<int32_t>(more) <= 0) return;
    total_ += more;
    latest_ = count;
  }
  uint64_t total() const { return total_; }

 private:
  uint64_t total_ = 0;
  uint32_t latest_ = 0;
};

class UdpSocket final : public DatagramSocket {
 public:
  // Returns unavailable if the address cannot be bound, and unsupported if the kernel has no such sockets. The message names
  // the address.
  static Result<std::unique_ptr<UdpSocket>> make(const UdpSocketOptions& options);
  ~UdpSocket() override;

  SendOutcome send(std::span<const OutDatagram> batch) override;
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override;
  int wait_handle() const override { return socket_.get(); }
  uint64_t own_drops() const override { return own_drops_.total(); }
  const TcpAddress& address() const override { return address_; }

  // Sizes as the kernel counts them, including its overhead; about half is payload.
  int receive_buffer_bytes() const;
  int send_buffer_bytes() const;
  bool segmentation_offload() const { return send_runs_; }
  bool receive_offload() const { return receive_runs_; }
  const UdpSocketCounters& counters() const { return counters_; }

 private:
  struct Outbox;
  struct Ring;
  explicit UdpSocket(Descriptor socket);
  Status set_up(const UdpSocketOptions& options);
  size_t fill(std::span<const OutDatagram> batch);
  void give(std::span<const OutDatagram> batch, size_t messages, SendOutcome& outcome);
  int give_alone(const OutDatagram& datagram);
  size_t deliver(size_t messages, Nanos now, Nanos wall, DatagramInbox& inbox);
  void read_errors(DatagramInbox& inbox);
  void read_own_drops();

  Descriptor socket_;
  TcpAddress address_;
  bool send_runs_ = false, receive_runs_ = false;
  bool errors_waiting_ = false;  // in the kernel's error queue, which keeps the handle readable
  WrappingCount own_drops_;
  UdpSocketCounters counters_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Ring> ring_;
};

}  // namespace unisono

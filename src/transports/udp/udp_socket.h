// A UDP socket of the kernel. In the UDP transport, only this file makes system calls that move data.
//
// Datagrams are never split into IP fragments. The kernel gets datagrams in batches, and header and payload may be in separate
// memory. A run is a number of datagrams that have the same size and the same address. With segmentation offload, a run is a
// single message for the kernel, for sending and for receiving. A socket has one address family. It reads clocks only to
// convert the kernel's arrival times to CLOCK_MONOTONIC.
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
  TcpAddress address{};  // The address of an interface, or the wildcard. With port 0, the kernel chooses the port.
  uint32_t datagram_bytes_max = 65507;  // a datagram up to this size is received completely
  int receive_buffer_bytes = 16 << 20;  // the size that is requested; the kernel may give less
  int send_buffer_bytes = 4 << 20;
  bool segmentation_offload = true;  // true: use runs for sending, if the kernel supports them
  // true: receive runs, if the kernel supports this. Each receive buffer then needs 64 KiB, whatever datagram_bytes_max is. If
  // the kernel drops a run, own_drops counts it as one datagram.
  bool receive_offload = true;
};

struct UdpSocketCounters {
  uint64_t sent = 0, received = 0;  // numbers of datagrams
  uint64_t sent_calls = 0, received_calls = 0;
  uint64_t sent_in_runs = 0;  // how many of the sent datagrams were sent by segmentation offload
  uint64_t refused = 0;       // datagrams that a host refused because nobody listened at the port
};

// Computes the 64-bit total of a counter that grows, has only 32 bits, and wraps. The values of the counter may come in any
// order, but must be less than 2^31 apart.
class WrappingCount {
 public:
  void update(uint32_t count) {
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
  // Returns the error unavailable if the address cannot be bound, and unsupported if the kernel lacks a feature that is needed.
  // The message contains the address.
  static Result<std::unique_ptr<UdpSocket>> make(const UdpSocketOptions& options);
  ~UdpSocket() override;

  SendOutcome send(std::span<const OutDatagram> batch) override;
  ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) override;
  int wait_handle() const override { return socket_.get(); }
  uint64_t own_drops() const override { return own_drops_.total(); }
  const TcpAddress& address() const override { return address_; }

  // Return the buffer sizes as the kernel counts them. The kernel includes its overhead, so only about half is payload.
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
  void send_messages(std::span<const OutDatagram> batch, size_t messages, SendOutcome& outcome);
  int send_alone(const OutDatagram& datagram);
  size_t deliver(size_t messages, Nanos now, Nanos wall, DatagramInbox& inbox);
  void read_errors(DatagramInbox& inbox);
  void read_own_drops();

  Descriptor socket_;
  TcpAddress address_;
  bool send_runs_ = false, receive_runs_ = false;
  bool errors_waiting_ = false;  // The kernel's error queue may hold errors. As long as it does, wait_handle() stays readable.
  WrappingCount own_drops_;
  UdpSocketCounters counters_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Ring> ring_;
};

}  // namespace unisono

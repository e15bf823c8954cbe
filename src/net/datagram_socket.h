// The interface between the UDP transport and a network that may lose, duplicate and reorder datagrams. A socket sends and
// receives batches of datagrams. UdpSocket implements the interface, and so do the virtual networks of tests and of the
// simulator.
//
// No call blocks, and no call allocates memory after construction. Memory that is passed to send() must stay valid only until
// the call returns. Only one thread at a time may use a socket. Only receive() makes upcalls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "wire/datagram.h"

namespace unisono {

// One datagram to send: a sealed header, then the payload. The socket sends the two as one datagram, without copying the
// payload first.
struct OutDatagram {
  const TcpAddress* to = nullptr;
  DatagramHeader header;
  std::span<const std::byte> payload{};
  // True if earlier datagrams to this receiver have arrived. The kernel then does not have to ask (by ARP or neighbour
  // discovery) whether the next hop still exists.
  bool confirms = false;
  // True: the kernel must not get this datagram merged with others into one long packet (segmentation offload). Something on a
  // path that drops long packets may drop these, too.
  bool alone = false;
};

// Why send() stopped before the end of its batch. After would_block and no_buffers, the caller sends the rest later. Each of
// the other reasons is about the first datagram that was not sent: the caller counts this datagram and skips it.
enum class SendStop : uint8_t {
  none = 0,
  would_block,  // the socket's buffer is full: continue when the handle is writable
  no_buffers,   // a queue behind the socket is full (ENOBUFS, ENOMEM); the handle stays writable, so retry after some time
  too_long,     // the datagram is longer than the path MTU that this host knows; datagrams are never fragmented
  firewalled,   // EPERM: a firewall rule of this host dropped the datagram
  other,        // any other error, such as a missing route; see SendOutcome::error
};

struct SendOutcome {
  size_t taken = 0;  // The network accepted this many datagrams, counted from the start of the batch.
  SendStop stop = SendStop::none;
  int error = 0;  // the errno that stopped the batch; 0: no error
  friend bool operator==(const SendOutcome&, const SendOutcome&) = default;
};

// A received datagram. Its bytes may be arbitrary and may come from any sender; there may be none. The inbox may overwrite
// them, to decrypt a datagram where it lies. A socket has a maximum length and may truncate a datagram that is longer. It still
// delivers more bytes of such a datagram than the maximum, so that check_shape refuses the datagram.
struct InDatagram {
  std::span<std::byte> bytes{};
  const TcpAddress* from = nullptr;
  Nanos came = 0;  // arrival time by CLOCK_MONOTONIC; 0: unknown
};

// Receives datagrams. Only DatagramSocket::receive calls it. Its functions may call send() of the same socket.
class DatagramInbox {
 public:
  virtual ~DatagramInbox() = default;
  // Delivers datagrams in the order of their arrival: at least one, and at most datagrams_per_batch. Their memory is valid
  // during the call.
  virtual void arrived(std::span<const InDatagram> batch) = 0;
  // The network reported that a datagram to this address had no receiver, because the port is closed. Such a report can be
  // forged, so it is only counted and has no other effect.
  virtual void refused(const TcpAddress& to) = 0;
};

struct ReceiveOutcome {
  size_t datagrams = 0;
  bool drained = false;  // true: nothing is left to receive. false: call receive() again before sleeping.
  friend bool operator==(const ReceiveOutcome&, const ReceiveOutcome&) = default;
};

class DatagramSocket {
 public:
  virtual ~DatagramSocket() = default;

  // Sends the datagrams of a batch in order. Datagrams that the network accepted may still get lost.
  virtual SendOutcome send(std::span<const OutDatagram> batch) = 0;
  // Receives at least one batch from the kernel. After datagrams_max datagrams it receives no further batch.
  virtual ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) = 0;

  // Returns a descriptor to wait on. If the result is -1, there is no descriptor, and the caller must poll. The descriptor is
  // readable when receive() has work; the work may also be an error that receive() clears. The descriptor is writable when
  // send() can continue after would_block.
  virtual int wait_handle() const = 0;
  // Returns how many datagrams have been dropped since the socket was made because the socket's buffer was full. The number is
  // up to date after receive() has returned `drained`.
  virtual uint64_t own_drops() const = 0;
  // Returns the address to which the socket is bound. Its port is not 0.
  virtual const TcpAddress& address() const = 0;
};

using DatagramSockets = std::vector<std::unique_ptr<DatagramSocket>>;

// Returns whether host and port are equal. Scopes are compared only if both are known. The function is cheap enough to be
// called for every datagram.
bool same_endpoint(const TcpAddress& a, const TcpAddress& b);

}  // namespace unisono

// The seam between the UDP transport and a network that may lose, repeat and reorder: it sends and receives batches of
// datagrams. Implemented by UdpSocket, and by virtual networks in tests and in the simulator.
//
// No call blocks, and none allocates after construction. Memory passed to send need only be valid during the call. All calls
// come from one thread at a time; upcalls come from receive only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "net/socket_address.h"
#include "wire/datagram.h"

namespace unisono {

// One datagram to send: a sealed header, then the payload. The socket joins the two on their way out, without copying the
// payload before.
struct OutDatagram {
  const TcpAddress* to = nullptr;
  DatagramHeader header;
  std::span<const std::byte> payload{};
  // Earlier datagrams to this receiver have arrived. So the kernel need not ask whether the next hop still exists (ARP,
  // neighbour discovery).
  bool confirms = false;
};

// Why send stopped before the end of its batch. All but would_block and no_buffers concern the first datagram that was not
// taken: the caller counts it and skips it.
enum class SendStop : uint8_t {
  none = 0,
  would_block,  // the socket's own buffer is full: go on when the handle is writable
  no_buffers,   // a queue behind the socket is full (ENOBUFS, ENOMEM): the handle stays writable, so go on after some time
  too_long,     // longer than the path allows, as far as this host knows; nothing is fragmented
  firewalled,   // EPERM: a rule of this host dropped it
  other,        // no route and the like: `error`
};

struct SendOutcome {
  size_t taken = 0;  // number of datagrams from the start that the network took
  SendStop stop = SendStop::none;
  int error = 0;  // errno of the stop
  friend bool operator==(const SendOutcome&, const SendOutcome&) = default;
};

// Any bytes from any sender, even none. A datagram that is longer than the socket's maximum may be cut, but stays longer than
// the maximum, so check_shape refuses it.
struct InDatagram {
  std::span<const std::byte> bytes{};
  const TcpAddress* from = nullptr;
  Nanos came = 0;  // arrival time by CLOCK_MONOTONIC; 0: not known
};

// Receives datagrams. Called from DatagramSocket::receive only; may call send of the same socket.
class DatagramInbox {
 public:
  virtual ~DatagramInbox() = default;
  // Datagrams in the order of arrival; at least one, at most datagrams_per_batch. The memory is valid during the call.
  virtual void arrived(std::span<const InDatagram> batch) = 0;
  // The network reported that nobody received a datagram sent to this address (a closed port). Such a report can be forged, so
  // it is only counted.
  virtual void refused(const TcpAddress& to) = 0;
};

struct ReceiveOutcome {
  size_t datagrams = 0;
  bool drained = false;  // nothing is left to receive; if false, call again before sleeping
  friend bool operator==(const ReceiveOutcome&, const ReceiveOutcome&) = default;
};

class DatagramSocket {
 public:
  virtual ~DatagramSocket() = default;

  // Sends in order. Datagrams that the network took may still get lost.
  virtual SendOutcome send(std::span<const OutDatagram> batch) = 0;
  // Receives at least one batch of the kernel's. Begins no further batch after datagrams_max.
  virtual ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) = 0;

  // A descriptor to wait on, or -1 if there is none and the caller must poll. It is readable when there is something to receive
  // (an error condition counts; receive clears it), and writable when send can go on after would_block.
  virtual int wait_handle() const = 0;
  // Datagrams that were dropped because this socket's buffer was full, since the socket was made. Up to date whenever receive
  // returned `drained`.
  virtual uint64_t own_drops() const = 0;
  // The bound address; its port is not 0.
  virtual const TcpAddress& address() const = 0;
};

// True for the same host and port. Scopes count only where both are known. Cheap enough to call for every datagram.
bool same_endpoint(const TcpAddress& a, const TcpAddress& b);

}  // namespace unisono

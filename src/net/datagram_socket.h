// The seam between the UDP transport and a network that may lose, repeat and reorder: batches of datagrams out, batches of
// datagrams in. Implemented by UdpSocket, and by virtual networks in tests and in the simulator.
//
// Nothing blocks, nothing allocates after construction. What is sent needs to be valid during the call only. All calls come
// from one thread at a time; news come from receive only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/clock.h"
#include "net/socket_address.h"
#include "wire/datagram.h"

namespace unisono {

// One datagram to be sent: header (sealed), then payload. The two are joined on their way out; the payload is not copied
// before.
struct OutDatagram {
  const TcpAddress* to = nullptr;
  DatagramHeader header;
  std::span<const std::byte> payload{};
  bool confirms = false;  // what was sent to its receiver arrives: whoever is next on the way there is there, and need not be
                          // asked (ARP, neighbour discovery)
};

// Why send stopped before the end of its batch. All but would_block and no_buffers are about the first datagram that was not
// taken: that one is the caller's to count and to leave out.
enum class SendStop : uint8_t {
  none = 0,
  would_block,  // the socket's own buffer is full: go on when the handle is writable
  no_buffers,   // a queue behind the socket is full (ENOBUFS, ENOMEM): the handle stays writable, so go on after some time
  too_long,     // for the path, as far as this host knows it: nothing is fragmented
  firewalled,   // EPERM: a rule of this host dropped it
  other,        // no route and the like: `error`
};

struct SendOutcome {
  size_t taken = 0;  // the first so many are the network's now
  SendStop stop = SendStop::none;
  int error = 0;  // errno of the stop
  friend bool operator==(const SendOutcome&, const SendOutcome&) = default;
};

// Any bytes from anybody, even none. One that is longer than the socket was made for may come cut, yet stays longer than that,
// so check_shape refuses it.
struct InDatagram {
  std::span<const std::byte> bytes{};
  const TcpAddress* from = nullptr;
  Nanos came = 0;  // when the network brought it, by CLOCK_MONOTONIC; 0: not known
};

// The receiver of what has come. Called from DatagramSocket::receive only. It may call send of the same socket.
class DatagramInbox {
 public:
  virtual ~DatagramInbox() = default;
  // In the order in which they came; at most datagrams_per_batch, at least one. Valid during the call.
  virtual void arrived(std::span<const InDatagram> batch) = 0;
  // The network said that something sent to this address did not reach anybody (a closed port). Anyone can forge that: for
  // counting only.
  virtual void refused(const TcpAddress& to) = 0;
};

struct ReceiveOutcome {
  size_t datagrams = 0;
  bool drained = false;  // nothing is left; else call again before sleeping
  friend bool operator==(const ReceiveOutcome&, const ReceiveOutcome&) = default;
};

class DatagramSocket {
 public:
  virtual ~DatagramSocket() = default;

  // In order. Datagrams that are the network's may still get lost, of course.
  virtual SendOutcome send(std::span<const OutDatagram> batch) = 0;
  // At least one batch of the kernel's, and no further one begins after so many datagrams.
  virtual ReceiveOutcome receive(DatagramInbox& inbox, size_t datagrams_max) = 0;

  // A descriptor to wait on: readable when there is something to receive (an error condition counts: receive clears it),
  // writable when send can go on after would_block. -1: there is none, poll.
  virtual int wait_handle() const = 0;
  // Datagrams that came as far as this socket and found its buffer full, since it was made. Up to date whenever receive said
  // `drained`.
  virtual uint64_t own_drops() const = 0;
  // As it is bound: the port is not 0.
  virtual const TcpAddress& address() const = 0;
};

// The same host and port; scopes differ only where both are known. Cheap enough for every datagram.
bool same_endpoint(const TcpAddress& a, const TcpAddress& b);

}  // namespace unisono

// Finds out what the kernel knows about the path of a connection, and fits a socket to its path. The calls take the descriptor
// of a TCP socket. If an option cannot be set, nothing is said: each is an improvement, but none is required.
#pragma once

#include "base/clock.h"
#include "net/stream_socket.h"

namespace unisono {

// Choose the congestion control of a socket. A connection within a host uses Reno: it is never congested, and a paced algorithm
// (BBR) would halve its throughput. Every kernel has Reno, and every user may select it. A connection between hosts uses the
// machine's default.
//
// A socket that has used BBR once stays paced, even if its algorithm is changed later. Therefore call begin_without_pacing()
// before connect or listen. It sets Reno, which accepted sockets inherit. Call set_congestion_control() on a connected socket:
// if the peer is on another host, it sets the machine's default.
void begin_without_pacing(int socket);
void set_congestion_control(int socket);

// Returns the shortest round trip that was measured on the connection; 0: unknown. The handshake counts as one measurement.
Nanos least_round_trip(int socket);

// If the path is short, limits the bytes that the kernel buffers for this connection; kernel_path.cc says why. On other paths a
// fixed limit would turn off the kernel's automatic choice. Call this for a connected socket on which little has been sent.
void bound_unacknowledged(int socket);

Unacknowledged unacknowledged(int socket);

// Returns true if the other host has not answered for `silence`, despite at least two retransmissions or probes. If only the
// peer's process is stopped or slow, its kernel still answers, so the link is not closed. The option TCP_USER_TIMEOUT would
// close the link, because it treats a closed window as silence.
bool host_is_silent(int socket, Nanos silence);

// See StreamSocket::awaits_host.
bool awaits_host(int socket, Nanos silence);

}  // namespace unisono

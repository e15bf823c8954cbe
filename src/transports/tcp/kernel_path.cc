#include "transports/tcp/kernel_path.h"

#include <linux/sockios.h>
#include <linux/tcp.h>  // <netinet/tcp.h> lacks tcp_info::tcpi_min_rtt
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstring>

#include "net/socket_address.h"
#include "net/tcp_socket.h"

namespace unisono {
namespace {

// Why there is a bound: by default the kernel lets a connection have megabytes in flight. On one host, these bytes leave the
// caches between the time when they are copied into the kernel and the time when they are copied out. On a switched network,
// several ranks may send to one rank; their bytes in flight then overflow the queue at the receiver's port.
//
// In a test, four hosts at 1 Gbit/s ran five all-reduces of 64 MiB. Without the bound they lost 200 aggregates of segmentation
// offload, and took 11 % longer than the wire needs. With a bound of 256 KiB they lost none, and took as long as the wire
// needs. The kernel doubles the bound to 512 KiB, to allow for its own overhead. Even the longest short path at 10 Gbit/s needs
// less: in 300 us, 375 KB are sent at this rate.
constexpr int send_buffer_bytes = 256 << 10;
constexpr Nanos short_path_max = 300 * microsecond;

// The kernel sends a segment again after 0.2 s, and then after twice the time. One repetition is no sign of trouble.
constexpr uint32_t repeats_min = 2;

}  // namespace

void begin_without_pacing(int socket) {
  constexpr char reno[] = "reno";
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, reno, sizeof reno - 1);
}

void set_congestion_control(int socket) {
  const auto peer = remote_address(socket);
  if (peer.bytes > 0 && local_address(socket).same_host(peer)) return begin_without_pacing(socket);
  // A new socket has this machine's default congestion control. So make one and read its algorithm.
  const Descriptor fresh(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  char name[16] = {};  // the kernel's TCP_CA_NAME_MAX is 16
  socklen_t bytes = sizeof name;
  if (!fresh.open() || ::getsockopt(fresh.get(), IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return;
  (void)::setsockopt(socket, IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(::strnlen(name, bytes)));
}

Nanos least_round_trip(int socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  // Older kernels do not fill in tcpi_min_rtt. On a new connection, the smoothed round trip tcpi_rtt can be used instead.
  const bool complete = bytes >= offsetof(tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
  const auto us = complete && info.tcpi_min_rtt != UINT32_MAX ? info.tcpi_min_rtt : info.tcpi_rtt;
  return static_cast<Nanos>(us) * microsecond;
}

void bound_unacknowledged(int socket) {
  const auto round_trip = least_round_trip(socket);
  if (round_trip == 0 || round_trip > short_path_max) return;
  (void)::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &send_buffer_bytes, sizeof send_buffer_bytes);
}

Unacknowledged unacknowledged(int socket) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  int left = 0;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 || ::ioctl(socket, SIOCOUTQ, &left) != 0) return {};
  if (info.tcpi_retransmits < repeats_min || info.tcpi_unacked == 0 || left <= 0) return {};
  return {.repeats = info.tcpi_retransmits,
          .segments = info.tcpi_unacked,
          .segment_bytes = info.tcpi_snd_mss,
          .packet_bytes = info.tcpi_pmtu,
          .bytes = static_cast<uint64_t>(left)};
}

bool host_is_silent(int socket, Nanos silence) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  const auto limit = static_cast<uint64_t>(silence / millisecond);
  return (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2) && info.tcpi_last_ack_recv >= limit &&
         info.tcpi_last_data_recv >= limit;
}

bool awaits_host(int socket, Nanos silence) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  const auto limit = static_cast<uint64_t>(silence / millisecond);
  // If this host has no way to the peer, nothing is sent but probes, as for a closed window. A host answers probes at once.
  const bool awaits = info.tcpi_unacked > 0 || info.tcpi_probes > 0;
  return awaits && info.tcpi_last_ack_recv >= limit && info.tcpi_last_data_recv >= limit;
}

}  // namespace unisono

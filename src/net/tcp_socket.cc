#include "net/tcp_socket.h"

#include <cerrno>
#include <cstring>

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "base/concat.h"
#include "net/socket_address.h"

namespace unisono {
namespace {

void set_option(int socket, int level, int name, int value) {
  // Errors are ignored: every option is an improvement, but none is required, so that old kernels work, too.
  (void)::setsockopt(socket, level, name, &value, sizeof value);
}

}  // namespace

void Descriptor::reset() {
  if (number_ < 0) return;
  disown_descriptor(number_);
  ::close(std::exchange(number_, -1));
}

void set_stream_options(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 4);
}

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

bool host_is_silent(int socket, Nanos silence) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return false;
  const auto limit = static_cast<uint64_t>(silence / millisecond);
  return (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2) && info.tcpi_last_ack_recv >= limit &&
         info.tcpi_last_data_recv >= limit;
}

bool all_acknowledged(int socket) {
  int left = 0;
  return ::ioctl(socket, SIOCOUTQ, &left) == 0 && left == 0;
}

ptrdiff_t send_some(int socket, std::span<const std::byte> bytes) {
  const auto count = ::send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (count >= 0) return count;
  return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

ptrdiff_t receive_some(int socket, std::span<std::byte> bytes, bool& ended) {
  ended = false;
  const auto count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count > 0) return count;
  if (count == 0) {
    ended = !bytes.empty();
    return 0;
  }
  return errno == EAGAIN || errno == EINTR ? 0 : -errno;
}

bool watch(int epoll, int descriptor, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  return ::epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

void rewatch(int epoll, int descriptor, uint32_t events, uint64_t tag) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  UNISONO_CHECK(::epoll_ctl(epoll, EPOLL_CTL_MOD, descriptor, &event) == 0);
}

void unwatch(int epoll, int descriptor) { (void)::epoll_ctl(epoll, EPOLL_CTL_DEL, descriptor, nullptr); }

}  // namespace unisono

#include "net/tcp_socket.h"

#include <cerrno>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"

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

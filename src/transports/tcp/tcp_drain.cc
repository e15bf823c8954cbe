#include "transports/tcp/tcp_drain.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace unisono {
namespace {

constexpr int reads_per_step = 64;

}  // namespace

bool TcpDrain::watch(int epoll) {
  epoll_ = epoll;
  return unisono::watch(epoll, socket_.get(), last_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT, 0);
}

// Writes as much of last_ as the kernel takes. Returns false if writing failed for good.
bool TcpDrain::write(Nanos now) {
  while (written_ < last_.size()) {
    const auto count = ::send(socket_.get(), last_.data() + written_, last_.size() - written_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    written_ += static_cast<size_t>(count);
    until_ = now + read_timeout;
  }
  finished_ = true;
  until_ = now + close_timeout;
  (void)::shutdown(socket_.get(), SHUT_WR);
  if (epoll_ >= 0 && !last_.empty()) rewatch(epoll_, socket_.get(), EPOLLIN, 0);
  return true;
}

bool TcpDrain::step(Nanos now) {
  if (until_ == 0) until_ = now + read_timeout;
  std::array<std::byte, 16384> scratch;
  bool ended = false;
  ptrdiff_t count = 0;
  int reads = 0;
  do {
    count = receive_some(socket_.get(), scratch, ended);
  } while (count > 0 && ++reads < reads_per_step);
  if (ended || count < 0 || now >= until_) return false;
  return finished_ || write(now);
}

}  // namespace unisono

#include "transports/tcp/tcp_drain.h"

#include <array>

#include "base/check.h"

namespace unisono {
namespace {

constexpr int reads_per_step = 64;

}  // namespace

bool TcpDrain::watch(StreamWatcher& watcher) {
  watcher_ = &watcher;
  return socket_->watch(watcher, true, !last_.empty(), 0);
}

// Writes as much of last_ as the socket takes. Returns false if writing failed for good.
bool TcpDrain::write(Nanos now) {
  while (written_ < last_.size()) {
    const auto count = write_some(*socket_, ByteView(last_).subspan(written_));
    if (count <= 0) return count == 0;
    written_ += static_cast<size_t>(count);
    until_ = now + read_timeout;
  }
  finished_ = true;
  until_ = now + close_timeout;
  socket_->shut_down();
  if (watcher_ != nullptr) UNISONO_CHECK(socket_->watch(*watcher_, true, false, 0));
  return true;
}

bool TcpDrain::step(Nanos now) {
  if (until_ == 0) until_ = now + read_timeout;
  std::array<std::byte, 16384> scratch;
  bool ended = false;
  ptrdiff_t count = 0;
  int reads = 0;
  do {
    count = read_some(*socket_, scratch, ended);
  } while (count > 0 && ++reads < reads_per_step);
  if (ended || count < 0 || now >= until_) return false;
  return finished_ || write(now);
}

}  // namespace unisono

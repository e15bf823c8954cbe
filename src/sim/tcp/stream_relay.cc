#include "sim/tcp/stream_relay.h"

#include <algorithm>

#include "base/check.h"

namespace unisono::sim {
namespace {

constexpr Nanos silence = 20 * second;

}  // namespace

StreamRelay::StreamRelay(StreamNetwork& network, const TcpAddress& target, size_t buffer_bytes)
    : network_(network), target_(target), buffer_bytes_(buffer_bytes) {
  auto watcher = network.make_watcher(nullptr, 0);
  UNISONO_CHECK(watcher.ok());
  watcher_ = std::move(*watcher);
  auto listener = network.listen({}, *watcher_, 0);
  UNISONO_CHECK(listener.ok());
  listener_ = std::move(*listener);
}

bool StreamRelay::accept() {
  auto arrival = listener_->accept();
  if (!arrival.socket) return false;
  int error = 0;
  auto onward = network_.connect(target_, {}, error);
  if (!onward) return true;  // the arrival is closed
  auto& pair = pairs_.emplace_back();
  pair.sockets = {std::move(arrival.socket), std::move(onward)};
  return true;
}

bool StreamRelay::copy(Pair& pair, size_t from, bool& any) {
  auto& buffer = pair.buffers[from];
  auto& to = *pair.sockets[1 - from];
  if (buffer.size() < buffer_bytes_ && !pair.ended[from]) {
    Bytes scratch(buffer_bytes_ - buffer.size());
    const auto count = read_some(*pair.sockets[from], scratch, pair.ended[from]);
    if (count < 0) return false;
    buffer.insert(buffer.end(), scratch.begin(), scratch.begin() + count);
    any |= count > 0 || pair.ended[from];
  }
  if (!buffer.empty()) {
    const auto count = write_some(to, buffer);
    if (count < 0) return false;
    buffer.erase(buffer.begin(), buffer.begin() + count);
    any |= count > 0;
  }
  if (pair.ended[from] && buffer.empty()) to.shut_down();
  return true;
}

bool StreamRelay::step() {
  bool any = false;
  while (accept()) any = true;
  std::erase_if(pairs_, [&](Pair& pair) {
    if (!pair.connected) {
      const auto outcome = pair.sockets[1]->connected();
      if (!outcome) return false;
      if (*outcome != 0) return any = true;
      pair.connected = true;
    }
    for (const auto& socket : pair.sockets) {
      if (socket->host_is_silent(silence)) return any = true;
    }
    if (!copy(pair, 0, any) || !copy(pair, 1, any)) return any = true;
    return pair.ended[0] && pair.ended[1] && pair.buffers[0].empty() && pair.buffers[1].empty();
  });
  return any;
}

size_t StreamRelay::buffered_bytes() const {
  size_t bytes = 0;
  for (const auto& pair : pairs_) bytes += pair.buffers[0].size() + pair.buffers[1].size();
  return bytes;
}

}  // namespace unisono::sim

// Ends a connection whose other side may still be reading. It writes the last frames as the other side takes them. It reads and
// discards what still arrives: with unread bytes at close the kernel sends a reset, which could destroy the last frames. A
// stopped process reads them when it wakes up, so it learns that it was removed.
#pragma once

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"

namespace unisono {

class TcpDrain {
 public:
  // How long the other side gets to take the last frames, counted from its last progress, and then to close.
  static constexpr Nanos read_patience = 60 * second, close_patience = 2 * second;

  // last: bytes of frames; the first may be the rest of a half-written frame.
  TcpDrain(Descriptor socket, Bytes last) : socket_(std::move(socket)), last_(std::move(last)) {}

  // Registers the socket with `epoll`. False if that fails.
  bool watch(int epoll);
  // Reads and writes. Returns false when the drain is over.
  bool step(Nanos now);
  // The latest time for the next step(); 0: at once.
  Nanos deadline() const { return until_; }

 private:
  bool write(Nanos now);

  Descriptor socket_;
  Bytes last_;
  size_t written_ = 0;
  int epoll_ = -1;
  bool finished_ = false;  // everything is written and our side is shut down
  Nanos until_ = 0;
};

}  // namespace unisono

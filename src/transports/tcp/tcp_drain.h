// The end of a connection whose other side may still be reading: what it has to be told last is written as it makes room, and
// what it still sends is read and forgotten, because unread bytes at close make the kernel send a reset, which destroys our
// last words. A process that was stopped reads them when it wakes up: so it hears that it was removed.
#pragma once

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"

namespace unisono {

class TcpDrain {
 public:
  // How long the other side is waited for: to read on while it has not got our last words, and to close after that.
  static constexpr Nanos read_patience = 60 * second, close_patience = 2 * second;

  // last: bytes of frames, the first of which may continue a frame that was half written.
  TcpDrain(Descriptor socket, Bytes last) : socket_(std::move(socket)), last_(std::move(last)) {}

  // Has `epoll` wake a sleeper for it. False if it cannot.
  bool watch(int epoll);
  // Reads and writes. False when it is over.
  bool step(Nanos now);
  // When to call step() at the latest; 0: at once.
  Nanos deadline() const { return until_; }

 private:
  bool write(Nanos now);

  Descriptor socket_;
  Bytes last_;
  size_t written_ = 0;
  int epoll_ = -1;
  bool finished_ = false;  // all is written and our side is shut down
  Nanos until_ = 0;
};

}  // namespace unisono

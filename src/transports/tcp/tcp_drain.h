// Ends a connection whose other side may still be reading. It writes the last frames as fast as the other side takes them.
// Bytes that arrive are read and discarded: if some were unread when the socket is closed, the kernel would send a reset, which
// could destroy the last frames. If the other process is stopped, it reads the last frames when it continues, and learns from
// them that it was removed.
#pragma once

#include <memory>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/stream_socket.h"

namespace unisono {

class TcpDrain {
 public:
  // read_timeout: the drain ends if the other side has taken none of the remaining bytes for this long. close_timeout: when all
  // bytes are taken, the drain waits this long until the other side closes.
  static constexpr Nanos read_timeout = 60 * second, close_timeout = 2 * second;

  // `last` holds the bytes of the last frames. If a part of the first frame is already written, `last` holds only the rest of
  // that frame.
  TcpDrain(std::unique_ptr<StreamSocket> socket, Bytes last) : socket_(std::move(socket)), last_(std::move(last)) {}

  // Lets `watcher` report the tag 0 for the socket. Returns false if the socket cannot be watched.
  bool watch(StreamWatcher& watcher);
  // Reads and writes what the socket allows now. Returns false when the drain has ended.
  bool step(Nanos now);
  // The next step() must be called at this time or earlier; 0: at once.
  Nanos deadline() const { return until_; }

 private:
  bool write(Nanos now);

  std::unique_ptr<StreamSocket> socket_;
  Bytes last_;
  size_t written_ = 0;
  StreamWatcher* watcher_ = nullptr;
  bool finished_ = false;  // All bytes are written, and our side of the connection is shut down.
  Nanos until_ = 0;
};

}  // namespace unisono

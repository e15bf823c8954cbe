// A relay (or proxy) between virtual processes: it accepts connections, dials the target for each of them, and copies bytes
// both ways. Each half is a connection of its own, so both sides see the relay's address. The relay's kernel acknowledges bytes
// that the target may never get: drop_all() loses them.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "net/stream_socket.h"

namespace unisono::sim {

class StreamRelay {
 public:
  // `network` is the relay's own process, and must live longer. At most buffer_bytes wait per direction of a connection.
  StreamRelay(StreamNetwork& network, const TcpAddress& target, size_t buffer_bytes);
  uint16_t port() const { return listener_->port(); }
  // Accepts, reads and writes what is possible now. If one half fails, or its host does not answer for 20 s, closes both
  // halves. Returns true if anything happened.
  bool step();
  // Closes all connections. What the relay has read and not yet written is lost.
  void drop_all() { pairs_.clear(); }
  size_t count() const { return pairs_.size(); }
  // Returns the number of bytes that the relay has read and not yet written.
  size_t buffered_bytes() const;

 private:
  struct Pair {
    std::array<std::unique_ptr<StreamSocket>, 2> sockets;  // the dialler's, and the one to the target
    std::array<Bytes, 2> buffers;                          // from each of them to the other
    std::array<bool, 2> ended{};
    bool connected = false;
  };
  bool accept();
  // Returns false if the pair is over.
  bool copy(Pair& pair, size_t from, bool& any);

  StreamNetwork& network_;
  TcpAddress target_;
  size_t buffer_bytes_;
  std::unique_ptr<StreamWatcher> watcher_;
  std::unique_ptr<StreamListener> listener_;
  std::vector<Pair> pairs_;
};

}  // namespace unisono::sim

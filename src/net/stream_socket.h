// The seam between the TCP transport and what carries its bytes: stream connections, listeners, and a set that says which of
// them are ready. The kernel's sockets implement it (transports/tcp/kernel_streams.h), and so does the simulator
// (sim/tcp/virtual_streams.h), which drives the same transport with virtual connections.
//
// No call blocks. Errors are errno values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <sys/uio.h>

#include "base/clock.h"
#include "unisono/status.h"
#include "net/socket_address.h"

namespace unisono {

// Data on a connection that the peer's host has not acknowledged, although it was sent again.
struct Unacknowledged {
  uint32_t repeats = 0;        // how often it was sent again since the last acknowledgement; 0: there is no such data
  uint32_t segments = 0;       // number of segments that are not acknowledged
  uint32_t segment_bytes = 0;  // size of the longest segment
  uint32_t packet_bytes = 0;   // size of a packet with such a segment
  uint64_t bytes = 0;          // number of bytes that were sent, or wait to be sent
  bool has_long_segments() const { return bytes >= segment_bytes; }
};

class StreamWatcher;

// One connection, or an attempt to make one. The destructor closes it.
class StreamSocket {
 public:
  virtual ~StreamSocket() = default;

  // Of a connection that connect() began: nothing while it is in progress, 0 when it is connected, otherwise why it failed.
  virtual std::optional<int> connected() = 0;
  // Returns the number of bytes taken; 0: nothing can be written now; -errno: the connection has failed.
  virtual ptrdiff_t write(const iovec* parts, int count) = 0;
  // Returns the number of bytes read, or -errno. The result is 0 if nothing is available (then `ended` is false), or if the
  // peer has ended its side (then `ended` is true).
  virtual ptrdiff_t read(const iovec* parts, int count, bool& ended) = 0;
  // Like read(), but the bytes stay.
  virtual ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) = 0;
  // Ends this side: the peer reads what was written, and then the end.
  virtual void shut_down() = 0;

  // Chooses the events for which `watcher` reports `tag`. A socket has at most one watcher. With neither event the watcher
  // forgets the socket. Returns false if it cannot be watched.
  [[nodiscard]] virtual bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) = 0;
  virtual void unwatch() = 0;

  // Call this when the connection begins to carry frames: chooses congestion control and buffer bounds for its path.
  virtual void tune() = 0;
  virtual TcpAddress local() const = 0;
  virtual TcpAddress remote() const = 0;
  // Returns true if the peer's host has not answered for `silence`, despite at least two retransmissions or probes.
  virtual bool host_is_silent(Nanos silence) const = 0;
  virtual Unacknowledged unacknowledged() const = 0;
  // Returns how many of the written bytes the peer's host has not acknowledged. One system call.
  virtual uint64_t unacknowledged_bytes() const = 0;
};

// A set of listening sockets that have one port.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  virtual uint16_t port() const = 0;
  // Returns a connection that has arrived, or nothing. `error` is 0 if none waits. Out of descriptors (EMFILE, ENFILE, …), the
  // connection is accepted and closed, so that the watcher does not report it for ever.
  virtual std::unique_ptr<StreamSocket> accept(int& error) = 0;
};

// Says which sockets are ready. Events are level-triggered: they are reported until the cause is gone.
class StreamWatcher {
 public:
  virtual ~StreamWatcher() = default;
  // Appends at most `max` tags that are ready, and returns their number. Does not wait.
  virtual size_t ready(std::span<uint64_t> tags) = 0;
  // A descriptor that is readable if any event is ready, or -1 (simulator).
  virtual int wait_handle() const = 0;
};

// Where listening begins: at the given addresses, or at every address of this host if there is none.
struct StreamListenRequest {
  std::vector<InterfaceAddress> addresses{};
  uint16_t port = 0;  // 0: a free one
};

class StreamNetwork {
 public:
  virtual ~StreamNetwork() = default;
  // All interfaces of this host, best first.
  virtual Result<std::vector<InterfaceAddress>> interfaces() = 0;
  // `outer`: the new watcher is itself watched by it under `tag`. Returns unavailable if no descriptor is free.
  virtual Result<std::unique_ptr<StreamWatcher>> make_watcher(StreamWatcher* outer, uint64_t tag) = 0;
  // Listens, and lets `watcher` report `tag` when connections wait. Returns unavailable, with address and port in the text.
  virtual Result<std::unique_ptr<StreamListener>> listen(const StreamListenRequest& request, StreamWatcher& watcher, uint64_t tag) = 0;
  // Begins to connect. `sources`: local addresses, of which the one of the same kind as `to` is used; none: the kernel chooses.
  // Returns no socket and sets `error` if even the beginning failed.
  virtual std::unique_ptr<StreamSocket> connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) = 0;
};

// The kernel's sockets. One object serves every transport of a process.
StreamNetwork& kernel_streams();

}  // namespace unisono

// The seam between the TCP transport and what carries its bytes: stream connections, listeners, and watchers, which say which
// of them are ready. The kernel's sockets implement it (transports/tcp/kernel_streams.h). The simulator implements it, too, so
// that it drives the same transport over virtual connections.
//
// No call blocks. No call on a connection allocates memory. Errors are errno values. Only one thread at a time may use a
// network and the objects that it has made. A watcher must live longer than the sockets that it watches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "base/clock.h"
#include "net/socket_address.h"
#include "unisono/status.h"

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

// Says which sockets are ready. Events are level-triggered: a tag is reported in every call until its cause is gone.
class StreamWatcher {
 public:
  virtual ~StreamWatcher() = default;
  // Fills `tags` from its beginning with tags that are ready, and returns their number. If more are ready, later calls return
  // the others. Does not wait.
  virtual size_t ready(std::span<uint64_t> tags) = 0;
  // Returns a descriptor that is readable if any event is ready, or -1 if there is none (simulator).
  virtual int wait_handle() const = 0;
  // Lets `outer` report `tag` while an event of this watcher is ready. Several watchers may do so. Returns false if `outer`
  // cannot take it. The other function ends this; a watcher that is destroyed does so by itself.
  [[nodiscard]] virtual bool report_to(StreamWatcher& outer, uint64_t tag) = 0;
  virtual void stop_reporting_to(StreamWatcher& outer) = 0;
};

// One connection, or an attempt to make one. The destructor closes it, and its watcher forgets it.
class StreamSocket {
 public:
  virtual ~StreamSocket() = default;

  // For a socket from StreamNetwork::connect(). Returns nothing while the connection is being made, 0 once it is there, and
  // otherwise the error for which it failed.
  virtual std::optional<int> connected() = 0;
  // Writes the parts one after the other. Returns the number of bytes taken; 0: nothing can be written now, or the host lacks
  // memory for it; -errno: the connection has failed.
  virtual ptrdiff_t write(const iovec* parts, int count) = 0;
  // Returns the number of bytes read, or -errno. The result is 0 if nothing is available (then `ended` is false), or if the
  // peer has ended its side and everything is read (then `ended` is true). The parts must have space for at least one byte.
  virtual ptrdiff_t read(const iovec* parts, int count, bool& ended) = 0;
  // Like read(), but the bytes stay.
  virtual ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) = 0;
  // Returns true if the functions below can have other results than false and 0.
  virtual bool encrypts() const = 0;
  // A socket that encrypts may keep bytes that write() has taken, and may have read more than it was asked for. Such bytes wake
  // no watcher. has_unflushed(): call flush() when the socket can be written; it returns 0 or an errno value. has_buffered():
  // the last read() has filled its parts, so another one may find more.
  virtual bool has_unflushed() const = 0;
  virtual int flush() = 0;
  virtual bool has_buffered() const = 0;
  // Returns 0, or, if a part of an encrypted record has arrived that cannot be read without the rest, a number that changes
  // when more of it arrives.
  virtual uint64_t incomplete_record() const = 0;
  // Ends this side: the peer reads what was written, and then the end.
  virtual void shut_down() = 0;

  // Lets the destructor end the connection with a reset instead of an end: for a connection that another one replaces, so that
  // the peer does not take its end for the end of this process. Bytes that the peer's host has not acknowledged may be lost.
  // What it has acknowledged can still be read there.
  virtual void abort() = 0;

  // Chooses the events for which `watcher` reports `tag`. An end or an error of the connection counts as both events. A socket
  // has one watcher at most: a call with another watcher moves it. With neither event the watcher forgets the socket, and
  // reports no end either. Returns false if the watcher cannot take one more socket; the socket is then not watched.
  [[nodiscard]] virtual bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) = 0;

  // Chooses congestion control and buffer bounds for the path. Call this when the connection begins to carry frames.
  virtual void tune() = 0;
  virtual TcpAddress local() const = 0;
  // Returns the address of the other side. For an accepted connection it is known even if the connection has ended since.
  virtual TcpAddress remote() const = 0;
  // Returns true if the peer's host has not answered for `silence`, despite at least two retransmissions or probes. If only the
  // peer's process is stopped or slow, its host still answers.
  virtual bool host_is_silent(Nanos silence) const = 0;
  // Acknowledges to the peer's host what was read. Hosts delay acknowledgements of the last bytes before a pause.
  virtual void acknowledge_now() = 0;
  // Returns true if sent bytes are not acknowledged, and the peer's host has sent nothing for `silence`. The bytes may have
  // been sent just now. Bytes that wait for space at the peer do not count.
  virtual bool awaits_host(Nanos silence) const = 0;
  // Returns how many of the written bytes the peer's host has not acknowledged. Returns `unknown` if this is not known.
  virtual uint64_t unacknowledged_bytes() const = 0;
  static constexpr uint64_t unknown = UINT64_MAX;
  virtual Unacknowledged unacknowledged() const = 0;
};

// Write and read one span. The results are those of StreamSocket::write() and read().
inline ptrdiff_t write_some(StreamSocket& socket, std::span<const std::byte> bytes) {
  const iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  return socket.write(&part, 1);
}
inline ptrdiff_t read_some(StreamSocket& socket, std::span<std::byte> bytes, bool& ended) {
  const iovec part{bytes.data(), bytes.size()};
  return socket.read(&part, 1, ended);
}

// What StreamListener::accept() has found.
struct StreamArrival {
  std::unique_ptr<StreamSocket> socket{};
  // Why no connection can be accepted, for example EMFILE. 0: `socket` is a new connection, or no connection waits.
  int error = 0;
  // True: no descriptor was free, so a connection was accepted and closed. Otherwise the watcher would report it for ever.
  bool dropped = false;
};

// A set of listening sockets that have one port. The destructor closes them, and the watcher forgets them.
class StreamListener {
 public:
  virtual ~StreamListener() = default;
  virtual uint16_t port() const = 0;
  // Returns a connection that has arrived at any of the sockets. It calls on the sockets in turn, so that many connections at
  // one address cannot keep those at another address waiting.
  virtual StreamArrival accept() = 0;
};

// The addresses at which to listen.
struct StreamListenRequest {
  std::vector<InterfaceAddress> addresses{};  // empty: all addresses of this host
  uint16_t port = 0;                          // 0: one that is free at all of them
};

// Makes connections, listeners and watchers for one process.
class StreamNetwork {
 public:
  virtual ~StreamNetwork() = default;
  // Returns the addresses of all interfaces that are up, in any order.
  virtual Result<std::vector<InterfaceAddress>> interfaces() = 0;
  // If `outer` is not nullptr, it watches the new watcher, and reports `tag` while an event of the new one is ready. `outer`
  // must live longer. Returns the error unavailable if no descriptor is free.
  virtual Result<std::unique_ptr<StreamWatcher>> make_watcher(StreamWatcher* outer, uint64_t tag) = 0;
  // Listens. `watcher` reports `tag` while a connection waits. Addresses that this host lacks at the moment are skipped, if
  // there is another. Returns the error unavailable if the port is taken or cannot be bound; the message has address and port.
  virtual Result<std::unique_ptr<StreamListener>> listen(const StreamListenRequest& request, StreamWatcher& watcher,
                                                         uint64_t tag) = 0;
  // Begins to connect. The connection comes from the first of `sources` that is of the same kind as `to` (family, link-local,
  // loopback, scope). If there is none, the network chooses. Returns no socket and sets `error` if even the beginning failed.
  virtual std::unique_ptr<StreamSocket> connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) = 0;
};

}  // namespace unisono

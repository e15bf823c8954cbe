// The listening port of one process, and its unauthenticated peers. These are connections that have not yet sent a good hello.
//
// An unauthenticated peer must send a hello within a few seconds. The hello is good if it has this version and job, and is for
// this process. Any other connection is counted and closed. The number of unauthenticated peers is limited, so they cannot use
// up memory or descriptors; if there are too many, the oldest is closed. A connection with a good hello may wait longer, until
// the job's key is known and its peer is added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/stream_socket.h"
#include "transports/tcp/tcp_handshake.h"

namespace unisono {

struct TcpListenerOptions {
  StreamListenRequest listen{};
  Nanos hello_timeout = 5 * second;
  Nanos inbound_timeout = 10 * second;  // A connection with a good hello waits this long for its peer to be added.
  size_t unauthenticated_max = 64;
  // At most this many connections with a good hello may wait. In a large job, members may connect before this process has the
  // roster (the list of members). Each member then makes one connection per stream and address.
  size_t inbound_max = 1024;
};

// Decides about hellos, and takes over the connections that were accepted.
class TcpAcceptor {
 public:
  virtual ~TcpAcceptor() = default;
  struct Decision {
    bool wait = false;            // true: do not answer yet, and decide about the hello again later
    Nanos recheck_after = never;  // decide again at the latest this long after the hello
    TcpRefusal refusal = TcpRefusal::none;
  };
  // Decides about a hello that came `waited` ago.
  virtual Decision decide(const TcpHello& hello, Nanos waited) = 0;
  // Returns this process's id. A peer whose hello is for any process gets it as the answer.
  virtual PeerId introduction() const = 0;
  // Takes over a connection when the reply that accepts it has been sent. From now on the callee owns the socket, which
  // the listener's watcher still watches.
  virtual void take_connection(const TcpHello& hello, std::unique_ptr<StreamSocket> socket) = 0;
};

class TcpListener {
 public:
  // Returns the error unavailable if the port is taken or cannot be bound. The message contains the address and the port.
  // `watcher` reports the tag 0 for the listening sockets and for the connections that wait. It must live longer than they do.
  static Result<TcpListener> make(const TcpListenerOptions& options, StreamNetwork& network, StreamWatcher& watcher);

  uint16_t port() const { return port_; }
  // Accepts connections, reads hellos, and decides about them. Returns true if anything happened.
  bool step(Nanos now, TcpAcceptor& acceptor);
  // Call this when the key became known or a peer was added. The next step() then decides about all waiting hellos again.
  void recheck_waiting() { recheck_waiting_ = true; }
  bool wants_step() const { return recheck_waiting_; }
  Nanos next_deadline() const;
  // Closes the listening sockets, and the connections that wait. port() stays as it was.
  void close();
  uint64_t refused() const { return refused_; }
  size_t waiting() const { return waiting_.size(); }
  // Returns a text about the last refusal, such as "refused 3 connections, the last from 10.0.0.1:4 (another job is there)".
  // The text is empty if nothing was refused.
  std::string last_refusal() const { return last_refusal_; }
  // Returns why the last step() could not accept a connection: no descriptor was free. Returns an empty text otherwise.
  const std::string& exhausted() const { return exhausted_; }

 private:
  struct PendingConnection {
    std::unique_ptr<StreamSocket> socket;
    std::array<std::byte, sizeof(TcpHello)> bytes{};
    size_t byte_count = 0;
    Nanos deadline = 0;
    bool inbound = false;      // a complete and good hello has arrived
    bool introduced = false;   // we have sent our id, so the dialler may send a second hello
    Nanos hello_at = 0;        // the time at which the hello came
    Nanos recheck_at = never;  // the latest time to decide about the hello again
  };
  enum class Outcome : uint8_t { waiting, accepted, refused, withdrawn };

  TcpListener(const TcpListenerOptions& options, std::unique_ptr<StreamListener> listening, StreamWatcher& watcher)
      : options_(options), watcher_(&watcher), listening_(std::move(listening)), port_(listening_->port()) {}
  bool accept_some(Nanos now);
  void evict_oldest(bool inbound);
  Outcome read(PendingConnection& connection, Nanos now);
  Outcome decide(PendingConnection& connection, Nanos now, TcpAcceptor& acceptor);
  Outcome introduce(PendingConnection& connection, Nanos now, const PeerId& self);
  void refuse(PendingConnection& connection, TcpRefusal why, const char* text);

  TcpListenerOptions options_;
  StreamWatcher* watcher_;
  std::unique_ptr<StreamListener> listening_;  // nullptr after close()
  uint16_t port_ = 0;
  std::vector<PendingConnection> waiting_;  // oldest first
  uint64_t refused_ = 0;
  std::string last_refusal_;
  std::string exhausted_;
  bool recheck_waiting_ = false;
};

}  // namespace unisono

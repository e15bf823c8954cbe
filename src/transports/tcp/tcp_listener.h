// The connections that have called this member of the process's port (tcp_port.h) and wait for an answer.
//
// A connection must send a good hello within a few seconds. The hello is good if it has this version and job, and is for this
// member. Any other connection is counted and closed. The number of connections without a hello is limited, so they cannot use
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
#include "tls/tls_context.h"
#include "transports/tcp/tcp_greeting.h"
#include "transports/tcp/tcp_port.h"

namespace unisono {

struct TcpListenerOptions {
  StreamListenRequest listen{};
  PeerId self{};
  std::shared_ptr<const TlsContext> tls{};  // null: connections are neither encrypted nor authenticated
  bool shares_port = true;                  // see TcpPortMember::shares
  Nanos hello_timeout = 5 * second;
  Nanos inbound_timeout = 10 * second;  // A connection with a good hello waits this long for its peer to be added.
  size_t unauthenticated_max = 64;
  // At most this many connections with a good hello may wait. In a large job, members may connect before this process has the
  // roster (the list of members). Each member then makes one connection per stream and address.
  size_t inbound_max = 1024;
};

// A good hello, and the addresses that its sender has at the moment.
struct TcpInbound {
  TcpSessionHello hello;
  std::array<TcpWireAddress, tcp_hello_addresses_max> addresses{};
  bool direct = false;  // see is_direct()
};

// Decides about hellos, and takes over the connections that were accepted.
class TcpAcceptor {
 public:
  virtual ~TcpAcceptor() = default;
  struct Decision {
    bool wait = false;            // true: do not answer yet, and decide about the hello again later
    bool draining = false;        // with `wait`: tell the dialler that its former connection is still being read
    Nanos recheck_after = never;  // decide again at the latest this long after the hello
    TcpRefusal refusal = TcpRefusal::none;
    uint64_t position = 0;  // for TcpSessionReply
    uint32_t attempt = 0;   // for TcpSessionReply
  };
  // Decides about a hello that came `waited` ago.
  virtual Decision decide(const TcpInbound& inbound, Nanos waited) = 0;
  // Takes over a connection when the reply that accepts it has been sent. From now on the callee owns the socket, which the
  // listener's watcher still watches.
  virtual void take_connection(const TcpInbound& inbound, std::unique_ptr<StreamSocket> socket) = 0;
};

class TcpListener {
 public:
  // Returns the error unavailable if the port is taken or cannot be bound. The message contains the address and the port.
  // `watcher` reports the tag 0 for the port and for the connections that wait. It must live longer than they do.
  static Result<TcpListener> make(const TcpListenerOptions& options, StreamNetwork& network, StreamWatcher& watcher);

  uint16_t port() const { return port_; }
  bool listens() const { return membership_.joined(); }
  // Accepts connections, reads hellos, and decides about them. Returns true if anything happened.
  bool step(Nanos now, TcpAcceptor& acceptor);
  // Call this when the key became known or a peer was added. The next step() then decides about all waiting hellos again.
  void recheck_waiting() { recheck_waiting_ = true; }
  bool wants_step() const { return recheck_waiting_; }
  Nanos next_deadline() const;
  // Leaves the port, and closes the connections that wait. port() stays as it was.
  void close();
  uint64_t refused() const { return refused_ + membership_.refusals().count; }
  // From now on, connections that call no process in particular are answered, too.
  void answer_anyone() { membership_.answer_anyone(); }
  size_t waiting() const { return waiting_.size(); }
  // Returns a text about the last refusal, such as "refused 3 connections, the last from 10.0.0.1:4 (another job is there)".
  // The text is empty if nothing was refused.
  std::string last_refusal() const;
  // Returns why the last step() could not accept a connection: no descriptor was free. Returns an empty text otherwise.
  std::string exhausted() const { return membership_.refusals().exhausted; }

 private:
  struct PendingConnection {
    std::unique_ptr<StreamSocket> socket;
    TcpPreamble preamble;
    // First the hello arrives, then the addresses that follow it.
    std::array<std::byte, sizeof(TcpSessionHello) + tcp_hello_addresses_max * sizeof(TcpWireAddress)> bytes{};
    size_t byte_count = 0;
    Nanos deadline = 0;
    bool inbound = false;        // a complete and good hello has arrived
    bool introduced = false;     // we have sent our id, so the dialler may send a second hello
    bool draining_told = false;  // we have sent a reply that says `draining`
    Nanos hello_at = 0;          // the time at which the hello came
    Nanos recheck_at = never;    // the latest time to decide about the hello again
    TcpInbound greeting;
  };
  enum class Outcome : uint8_t { waiting, accepted, refused, withdrawn };

  TcpListener(const TcpListenerOptions& options, TcpPortMembership membership, StreamWatcher& watcher)
      : options_(options), watcher_(&watcher), membership_(std::move(membership)), port_(membership_.port()) {}
  bool take_arrivals(Nanos now);
  void evict_oldest(bool inbound);
  bool secure(PendingConnection& connection);
  Outcome read(PendingConnection& connection, Nanos now);
  Outcome take_hello(PendingConnection& connection, Nanos now);
  Outcome decide(PendingConnection& connection, Nanos now, TcpAcceptor& acceptor);
  Outcome introduce(PendingConnection& connection, Nanos now);
  TcpSessionReply reply_to(const PendingConnection& connection) const;
  void refuse(PendingConnection& connection, TcpRefusal why, const char* text);
  void refuse(PendingConnection& connection, const TcpAcceptor::Decision& decision);

  TcpListenerOptions options_;
  StreamWatcher* watcher_;
  TcpPortMembership membership_;
  uint16_t port_ = 0;
  std::vector<TcpArrival> arrived_;         // used by take_arrivals() only; a member so that its memory is used again
  std::vector<PendingConnection> waiting_;  // oldest first
  uint64_t refused_ = 0;
  std::string last_refusal_;
  bool recheck_waiting_ = false;
};

}  // namespace unisono

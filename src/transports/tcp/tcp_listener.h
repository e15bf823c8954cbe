// The listening port of one process and the unauthenticated peers at it: connections that have not shown a good hello yet.
//
// An unauthenticated peer has a few seconds to send a hello of this version and job for this process; everything else is
// counted and closed. Unauthenticated peers cannot use up memory or descriptors: their number is limited, and the oldest is
// closed first. A connection with the job's key (or with a hello before the key is known) may wait longer, until its peer is
// added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "net/tcp_socket.h"
#include "transports/tcp/tcp_handshake.h"

namespace unisono {

struct TcpListenerOptions {
  std::vector<InterfaceAddress> addresses{};  // addresses to listen at; empty = all
  uint16_t port = 0;                          // 0 = the kernel chooses
  Nanos hello_timeout = 5 * second;
  Nanos inbound_timeout = 10 * second;  // how long a good hello waits for its peer to be added
  size_t unauthenticated_max = 64;
  // Bounds the connections of a large job's members that arrive before the roster: one per stream and address of each member.
  size_t inbound_max = 1024;
};

// Decides about hellos and takes over accepted connections.
class TcpAcceptor {
 public:
  virtual ~TcpAcceptor() = default;
  struct Verdict {
    bool wait = false;    // ask again later
    Nanos again = never;  // ask again at the latest when it has waited so long
    TcpRefusal refusal = TcpRefusal::none;
  };
  // waited: how long ago this hello came.
  virtual Verdict judge(const TcpHello& hello, Nanos waited) = 0;
  // The id for peers whose hello names none; PeerId{}: no answer to such hellos.
  virtual PeerId introduction() const = 0;
  // Called after the reply is sent. The callee owns the connection, which is not watched.
  virtual void enter(const TcpHello& hello, Descriptor socket) = 0;
};

class TcpListener {
 public:
  // Returns unavailable if the port is taken or cannot be bound; the message names it.
  static Result<TcpListener> make(const TcpListenerOptions& options, int epoll);

  uint16_t port() const { return port_; }
  // Accepts, reads and judges connections. True if anything happened.
  bool step(Nanos now, TcpAcceptor& acceptor);
  // Inbound connections are judged at the next step, because the key became known or a peer was added.
  void look_again() { look_again_ = true; }
  bool wants_step() const { return look_again_; }
  Nanos next_deadline() const;
  uint64_t refused() const { return refused_; }
  size_t waiting() const { return waiting_.size(); }
  // The last refusal, like "refused 3 unauthenticated peers, the last from 10.0.0.1:4 (another job is there)", or empty.
  std::string last_refusal() const { return last_refusal_; }

 private:
  struct PendingConnection {
    Descriptor socket;
    TcpAddress from;
    std::array<std::byte, sizeof(TcpHello)> bytes{};
    size_t byte_count = 0;
    Nanos until = 0;
    bool inbound = false;     // its hello is complete and good
    bool introduced = false;  // it got our id and may send a second hello
    Nanos since = 0;          // arrival of the hello
    Nanos again = never;      // when it is judged again at the latest
  };
  enum class Fate : uint8_t { stays, enters, refused, withdrew };

  TcpListener(const TcpListenerOptions& options, int epoll) : options_(options), epoll_(epoll) {}
  int listen_at(const TcpAddress& where, bool dual);
  int listen_everywhere();
  int listen_at_all();
  bool accept_some(Nanos now);
  void evict_oldest(bool inbound);
  Fate read(PendingConnection& visitor, Nanos now);
  Fate judge(PendingConnection& visitor, Nanos now, TcpAcceptor& acceptor);
  Fate introduce(PendingConnection& visitor, Nanos now, const PeerId& self);
  void refuse(PendingConnection& visitor, TcpRefusal why, const char* text);

  TcpListenerOptions options_;
  int epoll_ = -1;
  std::vector<Descriptor> sockets_;
  Descriptor spare_;  // closed for a moment when there are no descriptors left, to accept and close a connection
  uint16_t port_ = 0;
  std::vector<PendingConnection> waiting_;  // oldest first
  uint64_t refused_ = 0;
  std::string last_refusal_;
  bool look_again_ = false;
};

}  // namespace unisono

// The state of a RendezvousSession, and what drives it: its server, its dialer, and what they have said. Only
// rendezvous_socket.cc includes this header.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_refusal_log.h"
#include "rendezvous/rendezvous_server.h"
#include "rendezvous/rendezvous_socket.h"
#include "rendezvous/rendezvous_socket_dialer.h"
#include "rendezvous/rendezvous_socket_server.h"

namespace unisono {

// After the deadline, a server gets this much more time to report the missing ranks.
inline constexpr Nanos server_grace = second;

struct RendezvousSession::State {
  State(const ResolvedOptions& o, PeerId id, MemberRecord r, std::shared_ptr<const TlsContext> t)
      : options(o), self(id), record(std::move(r)), tls(std::move(t)) {}

  const ResolvedOptions options;
  const PeerId self;
  const MemberRecord record;
  const std::shared_ptr<const TlsContext> tls;  // null: connections are in clear
  std::function<void(const std::string&)> on_refusal;
  rendezvous::RefusalLog refusals;  // bounds what on_refusal gets
  PeerId server_identity;           // the identity of the server that this process runs
  // It watches the server and the dialer. wait_handle() returns it. A process that has the table and does not attend the
  // rendezvous needs neither of them, and closes it.
  Descriptor epoll;
  Nanos open_again = never;  // when to try again to open it
  std::unique_ptr<SocketServer> server;
  std::optional<rendezvous::Client> client;
  std::optional<Dialer> dialer;
  // If this process attends its own server, this is the number of its connection there, which has no socket (make_local).
  std::optional<uint64_t> local;
  // If another program listens at the port, this text says so, and this process cannot serve there. Otherwise it is empty.
  std::string taken;
  Status exhausted;           // the error if the server had no free descriptor for other ranks
  uint32_t served_round = 0;  // the value of dialer->rounds() when this process last tried to serve
  bool keep_serving = false;  // It is set by attend(). If no server answers at the port, this process serves there again.
  bool closed = false;
  bool lacks_descriptors = false;  // true: meet() has failed, because no descriptor was free to dial

  bool here() const { return !options.join_running && record.rank == 0; }
  bool dialing() const {
    if (!client || closed || local) return false;
    const auto phase = client->phase();
    return phase != rendezvous::Client::Phase::met && phase != rendezvous::Client::Phase::refused &&
           phase != rendezvous::Client::Phase::unauthenticated;
  }
  rendezvous::Hello hello() const;
  Status try_serve();
  void stop_serving();
  void start_dialing(Nanos deadline);
  bool open_epoll(Nanos now);
  void send(const Bytes& bytes, Nanos now);
  bool flushed() const;
  void pump(Nanos now);
  void serve(Nanos now);
  void move_local(Nanos now);
  void release_descriptors();
  void wait(Nanos now, Nanos until);
  Nanos next_deadline() const;
  Status check_own_server();
  Status meet_error(Nanos now, Nanos deadline);
  Status too_late(Nanos now) const;
  void check_descriptors(Nanos now);
  std::string itself_text() const;
  void drain(Nanos until);
  std::string address_text() const { return options.rendezvous.to_string(); }
};

}  // namespace unisono

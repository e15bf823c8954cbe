#include "transports/tcp/tcp_listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/concat.h"
#include "tls/tls_socket.h"

namespace unisono {

Result<TcpListener> TcpListener::make(const TcpListenerOptions& options, StreamNetwork& network, StreamWatcher& watcher) {
  auto membership = TcpPortMembership::join(network, options.listen,
                                            {.id = options.self,
                                             .shares = options.shares_port,
                                             .watcher = &watcher,
                                             .preamble_timeout = options.hello_timeout,
                                             .without_preamble_max = options.unauthenticated_max});
  if (!membership.ok()) return membership.status();
  return TcpListener(options, std::move(*membership), watcher);
}

bool TcpListener::step(Nanos now, TcpAcceptor& acceptor) {
  bool any = take_arrivals(now);
  recheck_waiting_ = false;
  for (size_t i = 0; i < waiting_.size();) {
    auto& connection = waiting_[i];
    auto outcome = read(connection, now);
    if (outcome == Outcome::waiting && connection.inbound) outcome = decide(connection, now, acceptor);
    if (outcome == Outcome::waiting && now >= connection.deadline) {
      if (connection.inbound) {
        refuse(connection, TcpRefusal::unknown_peer, "this process did not add the peer in time");
      } else {
        refuse(connection, TcpRefusal::not_unisono, "it sent no hello in time");
      }
      outcome = Outcome::refused;
    }
    if (outcome == Outcome::waiting) {
      ++i;
      continue;
    }
    any = true;
    // The entry is erased first, because the acceptor may use this listener.
    auto settled = std::move(connection);
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
    if (outcome == Outcome::accepted) acceptor.take_connection(settled.greeting, std::move(settled.socket));
  }
  return any;
}

bool TcpListener::take_arrivals(Nanos now) {
  const bool any = membership_.step(now, arrived_);
  for (auto& arrival : arrived_) {
    evict_oldest(false);
    PendingConnection connection;
    connection.socket = std::move(arrival.socket);
    connection.preamble = arrival.preamble;
    connection.deadline = now + options_.hello_timeout;
    if (!secure(connection)) continue;
    if (connection.socket->watch(*watcher_, true, false, 0)) waiting_.push_back(std::move(connection));
    else ++refused_;
  }
  arrived_.clear();
  return any;
}

// Begins to encrypt, if the dialler does. Returns false if only one of the two has a key.
bool TcpListener::secure(PendingConnection& connection) {
  const bool encrypted = (connection.preamble.flags & tcp_flag_encrypted) != 0;
  if (encrypted == (options_.tls != nullptr)) {
    if (encrypted) connection.socket = make_tls_socket(std::move(connection.socket), options_.tls, TlsConnection::Role::server);
    return true;
  }
  // What follows the preamble of an encrypted connection is TLS, so this answer in clear ends the handshake.
  refuse(connection, TcpRefusal::no_key,
         encrypted ? "authentication failed: it has a key, and this process has none" : "authentication failed: it has no key");
  return false;
}

// Makes space for one more connection of a kind. There are two kinds: unauthenticated and inbound. If as many connections of
// the kind wait as its limit allows, closes the oldest of them.
void TcpListener::evict_oldest(bool inbound) {
  const auto same = [&](const PendingConnection& connection) {
    return connection.inbound == inbound && connection.socket != nullptr;
  };
  const auto count = static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), same));
  if (count < (inbound ? options_.inbound_max : options_.unauthenticated_max)) return;
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(), same);
  refuse(*oldest, TcpRefusal::busy, "too many connections are waiting");
  oldest->socket.reset();
  // The entry stays in waiting_, because the caller iterates over waiting_. step() erases every entry whose socket is closed.
}

TcpListener::Outcome TcpListener::read(PendingConnection& connection, Nanos now) {
  if (!connection.socket) return Outcome::withdrawn;
  bool ended = false;
  if (connection.inbound) {
    // Between its hello and our reply, the dialler sends nothing. The only thing that can arrive is the end of its connection.
    std::byte ahead{};
    const auto count = connection.socket->peek(std::span(&ahead, 1), ended);
    if (ended || count < 0) return Outcome::withdrawn;
    if (count == 0) return Outcome::waiting;
    refuse(connection, TcpRefusal::not_unisono, "it sent bytes between its hello and the reply");
    return Outcome::refused;
  }
  // Nothing behind the hello and its addresses is read, because it belongs to the stream.
  for (;;) {
    size_t wanted = sizeof(TcpSessionHello);
    if (connection.byte_count >= wanted) {
      std::memcpy(&connection.greeting.hello, connection.bytes.data(), sizeof connection.greeting.hello);
      if (const auto why = check(connection.greeting.hello, connection.preamble); why != TcpRefusal::none) {
        refuse(connection, why, why == TcpRefusal::not_unisono ? "its hello is damaged" : name(why));
        return Outcome::refused;
      }
      wanted += connection.greeting.hello.addresses * sizeof(TcpWireAddress);
    }
    if (connection.byte_count == wanted) return take_hello(connection, now);
    const auto space = std::span(connection.bytes).subspan(connection.byte_count, wanted - connection.byte_count);
    const auto count = read_some(*connection.socket, space, ended);
    if (count == -EKEYREJECTED) {
      refuse(connection, TcpRefusal::not_unisono, "authentication failed: its key differs from ours");
      return Outcome::refused;
    }
    if (count < 0 || ended) {
      if (connection.introduced && connection.byte_count == 0)
        // The dialler has learnt our id, and does not want a link: it has one already, or it looked for another process.
        return Outcome::withdrawn;
      refuse(connection, TcpRefusal::not_unisono, "it closed the connection before its hello was complete");
      return Outcome::refused;
    }
    if (count == 0) return Outcome::waiting;
    connection.byte_count += static_cast<size_t>(count);
  }
}

TcpListener::Outcome TcpListener::take_hello(PendingConnection& connection, Nanos now) {
  auto& greeting = connection.greeting;
  std::memcpy(greeting.addresses.data(), connection.bytes.data() + sizeof greeting.hello,
              greeting.hello.addresses * sizeof(TcpWireAddress));
  if (!check_addresses(greeting.hello, std::span(greeting.addresses).first(greeting.hello.addresses))) {
    refuse(connection, TcpRefusal::not_unisono, "its hello is damaged");
    return Outcome::refused;
  }
  const TcpEnds mine{to_wire(connection.socket->local()), to_wire(connection.socket->remote())};
  greeting.direct = is_direct(mine, greeting.hello.ends, greeting.hello.flags);
  evict_oldest(true);
  connection.inbound = true;
  connection.hello_at = now;
  connection.deadline = now + options_.inbound_timeout;
  return Outcome::waiting;
}

TcpSessionReply TcpListener::reply_to(const PendingConnection& connection) const {
  TcpSessionReply reply;
  reply.self = options_.self;
  reply.ends = {to_wire(connection.socket->local()), to_wire(connection.socket->remote())};
  return reply;
}

TcpListener::Outcome TcpListener::decide(PendingConnection& connection, Nanos now, TcpAcceptor& acceptor) {
  const auto decision = acceptor.decide(connection.greeting, now - connection.hello_at);
  connection.recheck_at = never;
  if (decision.refusal == TcpRefusal::introduction) return introduce(connection, now);
  if (!decision.wait && decision.refusal != TcpRefusal::none) {
    refuse(connection, decision);
    return Outcome::refused;
  }
  if (decision.wait && decision.recheck_after != never) connection.recheck_at = connection.hello_at + decision.recheck_after;
  if (decision.wait && (!decision.draining || std::exchange(connection.draining_told, true))) return Outcome::waiting;
  auto reply = reply_to(connection);
  reply.accepted = decision.wait ? 0 : 1;
  reply.reason = decision.wait ? TcpRefusal::draining : TcpRefusal::none;
  reply.position = decision.position;
  reply.attempt = decision.attempt;
  seal(reply);
  const auto count = write_some(*connection.socket, std::as_bytes(std::span(&reply, 1)));
  if (count != sizeof reply) return Outcome::withdrawn;
  return decision.wait ? Outcome::waiting : Outcome::accepted;
}

TcpListener::Outcome TcpListener::introduce(PendingConnection& connection, Nanos now) {
  if (std::exchange(connection.introduced, true)) {
    refuse(connection, TcpRefusal::other_process, "its second hello names no process");
    return Outcome::refused;
  }
  auto introduction = reply_to(connection);
  introduction.reason = TcpRefusal::introduction;
  seal(introduction);
  const auto count = write_some(*connection.socket, std::as_bytes(std::span(&introduction, 1)));
  if (count != sizeof introduction) return Outcome::withdrawn;
  connection.inbound = false;
  connection.byte_count = 0;
  connection.deadline = now + options_.hello_timeout;
  return Outcome::waiting;
}

void TcpListener::refuse(PendingConnection& connection, const TcpAcceptor::Decision& decision) {
  auto reply = reply_to(connection);
  if (decision.refusal == TcpRefusal::other_job) reply.self = {};  // only the job's processes learn the id
  reply.reason = decision.refusal;
  reply.position = decision.position;
  reply.attempt = decision.attempt;
  seal(reply);
  (void)write_some(*connection.socket, std::as_bytes(std::span(&reply, 1)));
  // What members of the job may do is not counted: they connect twice, to two of our addresses at once, or once too often.
  const auto why = decision.refusal;
  if (why == TcpRefusal::duplicate || why == TcpRefusal::stale || why == TcpRefusal::left) return;
  ++refused_;
  last_refusal_ = concat("refused ", refused(), " connections, the last from ", connection.socket->remote().to_string(), " (",
                         name(why), ")");
}

void TcpListener::refuse(PendingConnection& connection, TcpRefusal why, const char* text) {
  ++refused_;
  last_refusal_ =
      concat("refused ", refused(), " connections, the last from ", connection.socket->remote().to_string(), " (", text, ")");
  if (why == TcpRefusal::not_unisono) return;
  TcpSessionReply reply;
  reply.reason = why;
  seal(reply);
  (void)write_some(*connection.socket, std::as_bytes(std::span(&reply, 1)));
}

std::string TcpListener::last_refusal() const {
  const auto of_port = membership_.refusals();
  if (!last_refusal_.empty() || of_port.last.empty()) return last_refusal_;
  return concat("refused ", refused(), " connections, the last from ", of_port.last);
}

void TcpListener::close() {
  refused_ = refused();
  last_refusal_ = last_refusal();
  waiting_.clear();
  membership_.leave();
}

Nanos TcpListener::next_deadline() const {
  Nanos next = membership_.next_deadline();
  for (const auto& connection : waiting_) next = std::min({next, connection.deadline, connection.recheck_at});
  return next;
}

}  // namespace unisono

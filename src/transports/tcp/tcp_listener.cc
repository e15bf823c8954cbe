#include "transports/tcp/tcp_listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/concat.h"

namespace unisono {
namespace {

constexpr int backlog = 1024;
constexpr int accepts_per_step = 64;  // limited so that many connections at once cannot delay the links
constexpr int port_tries = 16;        // how often to look for a port that is free at all addresses

TcpAddress any_address(int family) {
  TcpAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  // all bytes of the address are zero: this is the wildcard
  address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return address;
}

}  // namespace

Result<TcpListener> TcpListener::make(const TcpListenerOptions& options, int epoll) {
  TcpListener listener(options, epoll);
  listener.spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  int error = 0;
  for (int attempt = 0; attempt < port_tries; ++attempt) {
    listener.sockets_.clear();
    listener.port_ = options.port;
    error = options.addresses.empty() ? listener.listen_everywhere() : listener.listen_at_all();
    // The kernel has chosen a port that is free at the first address, but another process may use this port at a second
    // address. If that happens, try another port.
    if (error != EADDRINUSE || options.port != 0) break;
  }
  if (error != 0) {
    auto where = options.addresses.empty() ? any_address(AF_INET) : options.addresses.front().address;
    where.set_port(options.port);
    return Status(Code::unavailable, "tcp: cannot listen at " + where.to_string() + ": " + error_text(error));
  }
  for (const auto& socket : listener.sockets_) {
    if (!watch(epoll, socket.get(), EPOLLIN, 0))
      return Status(Code::unavailable, "tcp: epoll cannot watch the listening socket: " + error_text(errno));
  }
  return listener;
}

// Listens at one address. Returns 0 or errno.
int TcpListener::listen_at(const TcpAddress& where, bool dual) {
  auto address = where;
  address.set_port(port_);
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return errno;
  const int on = 1, off = 0;
  // With this option, a restarted process can listen although old connections still exist.
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (address.family() == AF_INET6) {
    (void)::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, dual ? &off : &on, sizeof on);
  }
  if (::bind(socket.get(), address.get(), address.bytes) != 0) return errno;
  begin_without_pacing(socket.get());
  if (::listen(socket.get(), backlog) != 0) return errno;
  port_ = local_address(socket.get()).port();
  sockets_.push_back(std::move(socket));
  return 0;
}

int TcpListener::listen_everywhere() {
  const int error = listen_at(any_address(AF_INET6), true);
  if (error == 0 || error == EADDRINUSE || error == EACCES) return error;
  return listen_at(any_address(AF_INET), false);  // the host has no IPv6
}

int TcpListener::listen_at_all() {
  int last = EADDRNOTAVAIL;
  for (const auto& entry : options_.addresses) {
    const int error = listen_at(entry.address, false);
    // Skip an address that the interface does not have at the moment. Any other error, such as a port that is taken, ends the
    // attempt.
    if (error != 0 && error != EADDRNOTAVAIL) return error;
    if (last != 0) last = error;
  }
  return last;
}

bool TcpListener::step(Nanos now, TcpAcceptor& acceptor) {
  exhausted_.clear();
  bool any = accept_some(now);
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
    if (connection.socket.open()) unwatch(epoll_, connection.socket.get());
    if (outcome == Outcome::accepted) {
      TcpHello hello;
      std::memcpy(&hello, connection.bytes.data(), sizeof hello);
      acceptor.take_connection(hello, std::move(connection.socket));
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
  return any;
}

bool TcpListener::accept_some(Nanos now) {
  bool any = false;
  for (const auto& listening : sockets_) {
    for (int i = 0; i < accepts_per_step; ++i) {
      PendingConnection connection;
      connection.from.bytes = sizeof connection.from.storage;
      auto* from = reinterpret_cast<sockaddr*>(&connection.from.storage);
      connection.socket = Descriptor(::accept4(listening.get(), from, &connection.from.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!connection.socket.open()) {
        if (errno == ECONNABORTED || errno == EINTR) continue;
        if (!is_out_of_descriptors(errno)) break;
        exhausted_ = error_text(errno);
        // No descriptor is free, so the connection cannot be accepted, and epoll would report it for ever. Therefore close the
        // spare descriptor, accept the connection, and close it.
        spare_.reset();
        Descriptor unwanted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (unwanted.open()) ++refused_;
        unwanted.reset();
        spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        break;
      }
      any = true;
      evict_oldest(false);
      set_stream_options(connection.socket.get());
      connection.deadline = now + options_.hello_timeout;
      if (watch(epoll_, connection.socket.get(), EPOLLIN, 0)) waiting_.push_back(std::move(connection));
      else ++refused_;
    }
  }
  return any;
}

// Makes space for one more connection of a kind. There are two kinds: unauthenticated and inbound. If as many connections of
// the kind wait as its limit allows, closes the oldest of them.
void TcpListener::evict_oldest(bool inbound) {
  const auto same = [&](const PendingConnection& connection) {
    return connection.inbound == inbound && connection.socket.open();
  };
  const auto count = static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), same));
  if (count < (inbound ? options_.inbound_max : options_.unauthenticated_max)) return;
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(), same);
  refuse(*oldest, TcpRefusal::busy, "too many connections are waiting");
  unwatch(epoll_, oldest->socket.get());
  oldest->socket.reset();
  // The entry stays in waiting_, because the caller iterates over waiting_. step() erases every entry whose socket is closed.
}

TcpListener::Outcome TcpListener::read(PendingConnection& connection, Nanos now) {
  if (!connection.socket.open()) return Outcome::withdrawn;
  if (connection.inbound) {
    // Between its hello and our reply, the dialler sends nothing. The only thing that can arrive is the end of its connection.
    std::byte ahead{};
    const auto count = ::recv(connection.socket.get(), &ahead, 1, MSG_DONTWAIT | MSG_PEEK);
    const bool gone = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    if (!gone && count <= 0) return Outcome::waiting;
    if (gone) return Outcome::withdrawn;
    refuse(connection, TcpRefusal::not_unisono, "it sent bytes between its hello and the reply");
    return Outcome::refused;
  }
  bool ended = false;
  const auto count = receive_some(connection.socket.get(), std::span(connection.bytes).subspan(connection.byte_count), ended);
  if (count < 0 || ended) {
    if (connection.introduced && connection.byte_count == 0)
      // The dialler has learnt our id, and does not want a link: it has one already, or it looked for another process.
      return Outcome::withdrawn;
    refuse(connection, TcpRefusal::not_unisono, "it closed the connection before its hello was complete");
    return Outcome::refused;
  }
  connection.byte_count += static_cast<size_t>(count);
  if (!may_become_hello(connection.bytes.data(), connection.byte_count)) {
    refuse(connection, TcpRefusal::not_unisono, "another protocol than Unisono");
    return Outcome::refused;
  }
  if (connection.byte_count < sizeof(TcpHello)) return Outcome::waiting;
  TcpHello hello;
  std::memcpy(&hello, connection.bytes.data(), sizeof hello);
  if (const auto why = check_hello(hello); why != TcpRefusal::none) {
    refuse(connection, why, name(why));
    return Outcome::refused;
  }
  evict_oldest(true);
  connection.inbound = true;
  connection.hello_at = now;
  connection.deadline = now + options_.inbound_timeout;
  return Outcome::waiting;
}

TcpListener::Outcome TcpListener::decide(PendingConnection& connection, Nanos now, TcpAcceptor& acceptor) {
  TcpHello hello;
  std::memcpy(&hello, connection.bytes.data(), sizeof hello);
  const auto decision = acceptor.decide(hello, now - connection.hello_at);
  connection.recheck_at = never;
  if (decision.wait) {
    if (decision.recheck_after != never) connection.recheck_at = connection.hello_at + decision.recheck_after;
    return Outcome::waiting;
  }
  if (decision.refusal == TcpRefusal::introduction) return introduce(connection, now, acceptor.introduction());
  if (decision.refusal != TcpRefusal::none) {
    refuse(connection, decision.refusal, name(decision.refusal));
    return Outcome::refused;
  }
  TcpReply reply;
  reply.accepted = 1;
  const auto count = send_some(connection.socket.get(), std::as_bytes(std::span(&reply, 1)));
  return count == sizeof reply ? Outcome::accepted : Outcome::withdrawn;
}

TcpListener::Outcome TcpListener::introduce(PendingConnection& connection, Nanos now, const PeerId& self) {
  if (std::exchange(connection.introduced, true)) {
    refuse(connection, TcpRefusal::other_process, "its second hello names no process");
    return Outcome::refused;
  }
  TcpIntroduction introduction;
  introduction.reply.reason = TcpRefusal::introduction;
  introduction.self = self;
  const auto count = send_some(connection.socket.get(), std::as_bytes(std::span(&introduction, 1)));
  if (count != sizeof introduction) return Outcome::withdrawn;
  connection.inbound = false;
  connection.byte_count = 0;
  connection.deadline = now + options_.hello_timeout;
  return Outcome::waiting;
}

void TcpListener::refuse(PendingConnection& connection, TcpRefusal why, const char* text) {
  // Duplicates are not counted: they come from members that connect twice, or to two of our addresses at once.
  if (why != TcpRefusal::duplicate) {
    ++refused_;
    last_refusal_ = concat("refused ", refused_, " connections, the last from ", connection.from.to_string(), " (", text, ")");
  }
  if (why == TcpRefusal::not_unisono || !connection.socket.open()) return;
  TcpReply reply;
  reply.reason = why;
  (void)send_some(connection.socket.get(), std::as_bytes(std::span(&reply, 1)));
}

void TcpListener::close() {
  for (const auto& socket : sockets_) unwatch(epoll_, socket.get());
  waiting_.clear();
  sockets_.clear();
  spare_.reset();
}

Nanos TcpListener::next_deadline() const {
  Nanos next = never;
  for (const auto& connection : waiting_) next = std::min({next, connection.deadline, connection.recheck_at});
  return next;
}

}  // namespace unisono

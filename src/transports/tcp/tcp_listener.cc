#include "transports/tcp/tcp_listener.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

namespace unisono {
namespace {

constexpr int backlog = 1024;
constexpr int accepts_per_step = 64;  // a flood must not hold up the links
constexpr int port_tries = 16;        // to find one port that is free on several addresses

TcpAddress any_address(int family) {
  TcpAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);  // all zero is the wildcard
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
    // With a port of the kernel's choice for the first address, the port may be taken at the second one.
    if (error != EADDRINUSE || options.port != 0) break;
  }
  if (error != 0) {
    auto where = options.addresses.empty() ? any_address(AF_INET) : options.addresses.front().address;
    where.set_port(options.port);
    return Status(Code::unavailable, "tcp: cannot listen at " + where.to_string() + ": " + error_text(error));
  }
  for (const auto& socket : listener.sockets_) {
    if (!watch(epoll, socket.get(), EPOLLIN, 0)) return Status(Code::unavailable, "tcp: no more watches in the kernel");
  }
  return listener;
}

// Returns 0 or errno.
int TcpListener::listen_at(const TcpAddress& where, bool dual) {
  auto address = where;
  address.set_port(port_);
  Descriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.open()) return errno;
  const int on = 1, off = 0;
  (void)::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a restart need not wait for old connections
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
  return listen_at(any_address(AF_INET), false);  // a host without IPv6
}

int TcpListener::listen_at_all() {
  int last = EADDRNOTAVAIL;
  for (const auto& entry : options_.addresses) {
    const int error = listen_at(entry.address, false);
    // Skips an address that the interface does not have now; a taken port is a conflict.
    if (error != 0 && error != EADDRNOTAVAIL) return error;
    if (last != 0) last = error;
  }
  return last;
}

bool TcpListener::step(Nanos now, TcpAcceptor& acceptor) {
  bool any = accept_some(now);
  look_again_ = false;
  for (size_t i = 0; i < waiting_.size();) {
    auto& visitor = waiting_[i];
    auto fate = read(visitor, now);
    if (fate == Fate::stays && visitor.inbound) fate = judge(visitor, now, acceptor);
    if (fate == Fate::stays && now >= visitor.until) {
      if (visitor.inbound) {
        refuse(visitor, TcpRefusal::unknown_peer, "nobody added this peer");
      } else {
        refuse(visitor, TcpRefusal::not_unisono, "no hello in time");
      }
      fate = Fate::refused;
    }
    if (fate == Fate::stays) {
      ++i;
      continue;
    }
    any = true;
    if (visitor.socket.open()) unwatch(epoll_, visitor.socket.get());
    if (fate == Fate::enters) {
      TcpHello hello;
      std::memcpy(&hello, visitor.bytes.data(), sizeof hello);
      acceptor.enter(hello, std::move(visitor.socket));
    }
    waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(i));
  }
  return any;
}

bool TcpListener::accept_some(Nanos now) {
  bool any = false;
  for (const auto& listening : sockets_) {
    for (int i = 0; i < accepts_per_step; ++i) {
      PendingConnection visitor;
      visitor.from.bytes = sizeof visitor.from.storage;
      auto* from = reinterpret_cast<sockaddr*>(&visitor.from.storage);
      visitor.socket = Descriptor(::accept4(listening.get(), from, &visitor.from.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!visitor.socket.open()) {
        if (errno == ECONNABORTED || errno == EINTR) continue;
        if (errno != EMFILE && errno != ENFILE) break;
        // In the backlog it would wake us without end, so it is accepted and closed.
        spare_.reset();
        Descriptor unwanted(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (unwanted.open()) ++refused_;
        unwanted.reset();
        spare_ = Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        break;
      }
      any = true;
      evict_oldest(false);
      set_stream_options(visitor.socket.get());
      visitor.until = now + options_.hello_timeout;
      if (watch(epoll_, visitor.socket.get(), EPOLLIN, 0)) waiting_.push_back(std::move(visitor));
      else ++refused_;
    }
  }
  return any;
}

// One more connection comes: if there are too many of its kind already (unauthenticated or inbound), the oldest of them is
// closed.
void TcpListener::evict_oldest(bool inbound) {
  const auto same = [&](const PendingConnection& visitor) { return visitor.inbound == inbound && visitor.socket.open(); };
  const auto count = static_cast<size_t>(std::count_if(waiting_.begin(), waiting_.end(), same));
  if (count < (inbound ? options_.inbound_max : options_.unauthenticated_max)) return;
  const auto oldest = std::find_if(waiting_.begin(), waiting_.end(), same);
  refuse(*oldest, TcpRefusal::busy, "too many connections wait");
  unwatch(epoll_, oldest->socket.get());
  oldest->socket.reset();
  // step() erases it, because it may be in the middle of the list; a closed socket counts as withdrawn.
}

TcpListener::Fate TcpListener::read(PendingConnection& visitor, Nanos now) {
  if (!visitor.socket.open()) return Fate::withdrew;
  if (visitor.inbound) {
    // An inbound connection says nothing more before the reply; only its end can come.
    std::byte ahead{};
    const auto count = ::recv(visitor.socket.get(), &ahead, 1, MSG_DONTWAIT | MSG_PEEK);
    const bool gone = count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
    if (!gone && count <= 0) return Fate::stays;
    if (gone) return Fate::withdrew;
    refuse(visitor, TcpRefusal::not_unisono, "bytes after the hello");
    return Fate::refused;
  }
  bool ended = false;
  const auto count = receive_some(visitor.socket.get(), std::span(visitor.bytes).subspan(visitor.byte_count), ended);
  if (count < 0 || ended) {
    if (visitor.introduced && visitor.byte_count == 0)
      return Fate::withdrew;  // it has such a link, or the process that it looked for is another one
    refuse(visitor, TcpRefusal::not_unisono, "closed before a whole hello");
    return Fate::refused;
  }
  visitor.byte_count += static_cast<size_t>(count);
  if (!may_become_hello(visitor.bytes.data(), visitor.byte_count)) {
    refuse(visitor, TcpRefusal::not_unisono, "another protocol");
    return Fate::refused;
  }
  if (visitor.byte_count < sizeof(TcpHello)) return Fate::stays;
  TcpHello hello;
  std::memcpy(&hello, visitor.bytes.data(), sizeof hello);
  if (const auto why = check_hello(hello); why != TcpRefusal::none) {
    refuse(visitor, why, name(why));
    return Fate::refused;
  }
  evict_oldest(true);
  visitor.inbound = true;
  visitor.since = now;
  visitor.until = now + options_.inbound_timeout;
  return Fate::stays;
}

TcpListener::Fate TcpListener::judge(PendingConnection& visitor, Nanos now, TcpAcceptor& acceptor) {
  TcpHello hello;
  std::memcpy(&hello, visitor.bytes.data(), sizeof hello);
  const auto verdict = acceptor.judge(hello, now - visitor.since);
  visitor.again = never;
  if (verdict.wait) {
    if (verdict.again != never) visitor.again = visitor.since + verdict.again;
    return Fate::stays;
  }
  if (verdict.refusal == TcpRefusal::introduction) return introduce(visitor, now, acceptor.introduction());
  if (verdict.refusal != TcpRefusal::none) {
    refuse(visitor, verdict.refusal, name(verdict.refusal));
    return Fate::refused;
  }
  TcpReply reply;
  reply.accepted = 1;
  const auto count = send_some(visitor.socket.get(), std::as_bytes(std::span(&reply, 1)));
  return count == sizeof reply ? Fate::enters : Fate::withdrew;
}

TcpListener::Fate TcpListener::introduce(PendingConnection& visitor, Nanos now, const PeerId& self) {
  if (std::exchange(visitor.introduced, true)) {
    refuse(visitor, TcpRefusal::other_process, "the second hello names no process, either");
    return Fate::refused;
  }
  TcpIntroduction introduction;
  introduction.reply.reason = TcpRefusal::introduction;
  introduction.self = self;
  const auto count = send_some(visitor.socket.get(), std::as_bytes(std::span(&introduction, 1)));
  if (count != sizeof introduction) return Fate::withdrew;
  visitor.inbound = false;
  visitor.byte_count = 0;
  visitor.until = now + options_.hello_timeout;
  return Fate::stays;
}

void TcpListener::refuse(PendingConnection& visitor, TcpRefusal why, const char* text) {
  // A member that connects twice, or to two of our addresses at once, is not an unauthenticated peer.
  if (why != TcpRefusal::duplicate) {
    ++refused_;
    last_refusal_ =
        "refused " + std::to_string(refused_) + " connections, the last from " + visitor.from.to_string() + " (" + text + ")";
  }
  if (why == TcpRefusal::not_unisono || !visitor.socket.open()) return;
  TcpReply reply;
  reply.reason = why;
  (void)send_some(visitor.socket.get(), std::as_bytes(std::span(&reply, 1)));
}

Nanos TcpListener::next_deadline() const {
  Nanos next = never;
  for (const auto& visitor : waiting_) next = std::min({next, visitor.until, visitor.again});
  return next;
}

}  // namespace unisono

#include "transports/tcp/tcp_listener.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"
#include "base/error_text.h"

namespace unisono {
namespace {

constexpr int accepts_per_step = 64;  // limited so that many connections at once cannot delay the links

}  // namespace

Result<TcpListener> TcpListener::make(const TcpListenerOptions& options, StreamNetwork& network, StreamWatcher& watcher) {
  auto listening = network.listen(options.listen, watcher, 0);
  if (!listening.ok()) return listening.status();
  return TcpListener(options, std::move(*listening), watcher);
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
  if (!listening_) return false;
  bool any = false;
  for (int i = 0; i < accepts_per_step; ++i) {
    auto arrival = listening_->accept();
    if (arrival.dropped) ++refused_;
    if (is_out_of_descriptors(arrival.error)) exhausted_ = error_text(arrival.error);
    if (!arrival.socket) break;
    any = true;
    evict_oldest(false);
    PendingConnection connection;
    connection.socket = std::move(arrival.socket);
    connection.deadline = now + options_.hello_timeout;
    if (connection.socket->watch(*watcher_, true, false, 0)) waiting_.push_back(std::move(connection));
    else ++refused_;
  }
  return any;
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
  if (connection.inbound) {
    // Between its hello and our reply, the dialler sends nothing. The only thing that can arrive is the end of its connection.
    std::byte ahead{};
    bool gone = false;
    const auto count = connection.socket->peek(std::span(&ahead, 1), gone);
    if (gone || count < 0) return Outcome::withdrawn;
    if (count == 0) return Outcome::waiting;
    refuse(connection, TcpRefusal::not_unisono, "it sent bytes between its hello and the reply");
    return Outcome::refused;
  }
  bool ended = false;
  const auto count = read_some(*connection.socket, std::span(connection.bytes).subspan(connection.byte_count), ended);
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
  const auto count = write_some(*connection.socket, std::as_bytes(std::span(&reply, 1)));
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
  const auto count = write_some(*connection.socket, std::as_bytes(std::span(&introduction, 1)));
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
    last_refusal_ =
        concat("refused ", refused_, " connections, the last from ", connection.socket->remote().to_string(), " (", text, ")");
  }
  if (why == TcpRefusal::not_unisono) return;
  TcpReply reply;
  reply.reason = why;
  (void)write_some(*connection.socket, std::as_bytes(std::span(&reply, 1)));
}

void TcpListener::close() {
  waiting_.clear();
  listening_.reset();
}

Nanos TcpListener::next_deadline() const {
  Nanos next = never;
  for (const auto& connection : waiting_) next = std::min({next, connection.deadline, connection.recheck_at});
  return next;
}

}  // namespace unisono

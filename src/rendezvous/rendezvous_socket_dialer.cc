#include "rendezvous/rendezvous_socket_dialer.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "rendezvous/rendezvous_job.h"

namespace unisono {

namespace {

using rendezvous::Client;

constexpr Nanos pause_first = 2 * millisecond;
// The longest pause between two attempts. When rank 0 has started, the other processes find it after this time at the latest.
constexpr Nanos pause_max_tcp = 250 * millisecond;
constexpr Nanos pause_max_file = 20 * millisecond;  // It is short, because an attempt costs only one system call.
constexpr Nanos connect_time = 3 * second;          // Connecting to one address may take this long.
constexpr Nanos greeting_time = 5 * second;         // A server must answer the hello within this time.
// After this time, the name is resolved again, because its addresses may have changed.
constexpr Nanos resolved_time = 5 * second;
constexpr size_t dialer_read_bytes = 64 << 10;

// Returns whether a TCP connection leads to itself. This can happen by chance: if a socket dials a port of this host where
// nobody listens, the kernel may give that same port to the socket itself.
bool is_own_echo(int socket) {
  const auto here = bound_address(socket);
  const auto there = peer_address(socket);
  return here.storage.ss_family != AF_UNIX && here.to_string() == there.to_string();
}

}  // namespace

Dialer::~Dialer() { hang_up(); }

void Dialer::hang_up() {
  close_socket();
  if (resolver_) unwatch(epoll_, resolver_->ready());
  resolver_.reset();
  state_ = State::waiting;
  deadline_ = 0;
}

void Dialer::close_socket() {
  if (channel_) unwatch(epoll_, channel_->socket());
  channel_.reset();
  queue_.clear();
  wants_write_ = false;
}

Nanos Dialer::next_deadline() const {
  if (state_ == State::connected)
    return client_.phase() == Client::Phase::greeting ? client_.greeting_since() + greeting_time : never;
  return deadline_;
}

void Dialer::poll(Nanos now) {
  if (first_try_ < 0) first_try_ = now;
  switch (state_) {
    case State::waiting:
      if (now < deadline_) return;
      if (address_.kind == RendezvousAddress::Kind::file || (!addresses_.empty() && now - resolved_at_ < resolved_time))
        return connect_next(now);
      return resolve(now);
    case State::resolving:
      if (resolver_->done()) on_resolved(now);
      return;
    case State::connecting: {
      int error = 0;
      socklen_t size = sizeof(error);
      (void)getsockopt(channel_->socket(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error != 0) return failed(error_text(error), now);
      if (peer_address(channel_->socket()).size > 0) return on_connected(now);
      if (now >= deadline_) failed("no answer to a connection request for " + rendezvous::seconds_text(connect_time), now);
      return;
    }
    case State::connected:
      write(now);
      read(now);
      if (state_ == State::connected && client_.phase() == Client::Phase::greeting && now >= next_deadline()) {
        ++times_ignored_;
        failed("connection accepted, but no answer for " + rendezvous::seconds_text(greeting_time), now);
      }
      return;
  }
}

void Dialer::resolve(Nanos now) {
  auto resolver = Resolver::start(address_.host, address_.port);
  if (!resolver.ok()) {
    exhausted_ = is_out_of_descriptors(errno);
    return failed(resolver.status().message(), now);
  }
  if (!watch(epoll_, resolver->ready(), EPOLLIN, dialer_tag)) return failed("epoll: " + error_text(errno), now);
  resolver_ = std::move(*resolver);
  state_ = State::resolving;
  deadline_ = never;
  if (resolver_->done()) on_resolved(now);
}

void Dialer::on_resolved(Nanos now) {
  auto addresses = resolver_->take();
  unwatch(epoll_, resolver_->ready());
  resolver_.reset();
  if (!addresses.ok()) {
    addresses_.clear();
    return failed("the name " + address_.host + " does not resolve (" + addresses.status().message() + ")", now);
  }
  addresses_ = std::move(*addresses);
  resolved_at_ = now;
  next_address_ = 0;
  connect_next(now);
}

void Dialer::connect_next(Nanos now) {
  state_ = State::connecting;
  deadline_ = now + connect_time;
  if (address_.kind == RendezvousAddress::Kind::file) {
    auto socket = dial_file(address_.path);
    exhausted_ = !socket.ok() && is_out_of_descriptors(errno);
    if (!socket.ok()) return failed(socket.status().message(), now);
    channel_ = std::make_unique<RendezvousChannel>(std::move(*socket));
    if (!watch(epoll_, channel_->socket(), EPOLLIN, dialer_tag)) return failed("epoll: " + error_text(errno), now);
    return on_connected(now);
  }
  const auto& address = addresses_[next_address_];
  Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  exhausted_ = !socket.open() && is_out_of_descriptors(errno);
  if (!socket.open()) return failed(error_text(errno), now);
  set_stream_options(socket.get());
  channel_ = std::make_unique<RendezvousChannel>(std::move(socket));
  if (connect(channel_->socket(), address.get(), address.size) == 0) {
    if (!watch(epoll_, channel_->socket(), EPOLLIN, dialer_tag)) return failed("epoll: " + error_text(errno), now);
    return on_connected(now);
  }
  if (errno != EINPROGRESS) return failed(error_text(errno), now);
  if (!watch(epoll_, channel_->socket(), EPOLLIN | EPOLLOUT, dialer_tag)) failed("epoll: " + error_text(errno), now);
}

void Dialer::on_connected(Nanos now) {
  if (is_own_echo(channel_->socket())) return failed(error_text(ECONNREFUSED), now);
  state_ = State::connected;
  if (tls_) channel_->encrypt(tls_, TlsConnection::Role::client);
  rewatch(epoll_, channel_->socket(), EPOLLIN, dialer_tag);
  sent_bytes_ = received_bytes_ = 0;
  queue_ = client_.connected(now);
  write(now);
}

void Dialer::send(const Bytes& bytes, Nanos now) {
  if (state_ != State::connected) return;
  queue_.insert(queue_.end(), bytes.begin(), bytes.end());
  write(now);
}

// Goes on with the handshake of TLS. Returns true if messages can be exchanged.
bool Dialer::can_exchange(Nanos now) {
  const auto done = channel_->handshake();
  if (done == 0) return true;
  if (!done) update_watch();
  else if (*done == EKEYREJECTED) on_rejected();
  else {
    ++times_ignored_;
    failed(*done == ECONNRESET ? "connection closed without an answer" : error_text(*done), now);
  }
  return false;
}

// The other side has another key, or none, or it is another program. Only the first is certain to end the client: nobody may
// talk this process into going on in clear.
void Dialer::on_rejected() {
  const Bytes start(channel_->start().begin(), channel_->start().end());
  hang_up();
  const auto program = rendezvous::guess_program(start);
  const bool is_ours = start.size() >= sizeof(rendezvous::message_magic) &&
                       std::memcmp(start.data(), &rendezvous::message_magic, sizeof(rendezvous::message_magic)) == 0;
  if (is_ours || start.empty() || program == "a TLS program") {
    client_.refuse({Code::invalid, "the server there: " + error_text(EKEYREJECTED) +
                                       "; give all processes of the job the same key (UNISONO_KEY_FILE), or choose another "
                                       "address if another job has this one"});
  } else {
    client_.refuse_program(program);
  }
}

void Dialer::write(Nanos now) {
  if (state_ != State::connected || (queue_.empty() && !channel_->has_unflushed()) || !can_exchange(now)) return;
  const auto size = channel_->write(queue_);
  if (size < 0) return;  // read() will report the reason.
  sent_bytes_ += static_cast<uint64_t>(size);
  queue_.erase(queue_.begin(), queue_.begin() + size);
  update_watch();
}

void Dialer::update_watch() {
  const bool writes = channel_->has_unflushed() || (!queue_.empty() && channel_->handshake() == 0);
  if (std::exchange(wants_write_, writes) == writes) return;
  rewatch(epoll_, channel_->socket(), EPOLLIN | (writes ? EPOLLOUT : 0u), dialer_tag);
}

void Dialer::read(Nanos now) {
  std::array<std::byte, dialer_read_bytes> buffer;
  while (state_ == State::connected && can_exchange(now)) {
    bool ended = false;
    const auto size = channel_->read(buffer, ended);
    if (size > 0) {
      received_bytes_ += static_cast<uint64_t>(size);
      client_.received(ByteView(buffer).first(static_cast<size_t>(size)), now);
      const auto phase = client_.phase();
      if (phase == Client::Phase::met || phase == Client::Phase::refused || phase == Client::Phase::unauthenticated)
        return hang_up();
      pause_ = 0;
      continue;
    }
    if (size == 0 && !ended) return;
    const bool was_registered = client_.phase() != Client::Phase::greeting;
    const bool received_any = client_.disconnected();
    if (client_.phase() == Client::Phase::met) return hang_up();
    if (!received_any) ++times_ignored_;
    if (was_registered) return failed("the server went away after it had registered this process", now);
    return failed(size < 0 ? error_text(static_cast<int>(-size)) : "connection closed without an answer", now);
  }
}

void Dialer::failed(const std::string& why, Nanos now) {
  close_socket();
  (void)client_.disconnected();
  ++failures_[failures_.size() < 8 || failures_.contains(why) ? why : "another error"];
  last_failure_ = why;
  if (address_.kind == RendezvousAddress::Kind::tcp && ++next_address_ < addresses_.size()) return connect_next(now);
  next_address_ = 0;
  ++rounds_;
  const Nanos pause_max = address_.kind == RendezvousAddress::Kind::tcp ? pause_max_tcp : pause_max_file;
  pause_ = std::clamp(pause_ + pause_ / 2, pause_first, pause_max);
  state_ = State::waiting;
  deadline_ = now + pause_;
}

std::string Dialer::history(Nanos now) const {
  std::string text;
  for (const auto& [why, count] : failures_) {
    text += (text.empty() ? "" : ", ") + why + (count == 1 ? " once" : concat(" ", count, " times"));
  }
  const bool greeting = state_ == State::connected && client_.phase() == Client::Phase::greeting;
  if (greeting) text += (text.empty() ? "" : ", ") + std::string("connection accepted now, but no answer yet");
  if (text.empty())
    text = state_ == State::resolving ? "the name " + address_.host + " was still being resolved"
                                      : "no connection attempt has ended";
  text += " over " + rendezvous::seconds_text(now - std::max<Nanos>(first_try_, 0));
  std::string tried;
  for (const auto& address : addresses_) tried += (tried.empty() ? "" : ", ") + address.host();
  if (!tried.empty()) text += "; tried address" + std::string(addresses_.size() == 1 ? " " : "es ") + tried;
  return text;
}

bool Dialer::is_this_host() const {
  if (address_.kind == RendezvousAddress::Kind::file) return true;
  return std::any_of(addresses_.begin(), addresses_.end(), [](const auto& address) { return is_local(address); });
}

bool Dialer::leads_only_here() const {
  return !addresses_.empty() && std::all_of(addresses_.begin(), addresses_.end(), is_local);
}

}  // namespace unisono

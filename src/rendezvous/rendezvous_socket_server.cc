#include "rendezvous/rendezvous_socket_server.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/concat.h"

namespace unisono {

namespace {

constexpr uint64_t listener_tag = 0;
constexpr int accepts_per_poll = 256;
constexpr size_t server_read_bytes = 64 << 10;
// At most this many bytes are queued for one client.
constexpr size_t queue_bytes_max = rendezvous::message_bytes_max + (1u << 20);
constexpr Nanos drain_time = second;  // A peer that was refused has this long to read the reason.
// If accept() fails because there are no descriptors or no memory left, the server pauses for this long.
constexpr Nanos accept_pause = 100 * millisecond;

bool is_tcp(int socket) { return bound_address(socket).storage.ss_family != AF_UNIX; }

// Without a free descriptor, accept() fails even if no connection waits.
bool has_waiting(int listening) {
  pollfd handle{listening, POLLIN, 0};
  return ::poll(&handle, 1, 0) == 1;
}

std::string describe_remote(int socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (!is_tcp(socket) && getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) == 0) {
    return concat("pid ", credentials.pid);
  }
  return peer_address(socket).to_string();
}

}  // namespace

Result<std::unique_ptr<SocketServer>> SocketServer::make(Listening listening, rendezvous::ServerSettings settings, int epoll,
                                                         std::shared_ptr<const TlsContext> tls) {
  if (!watch(epoll, listening.socket(), EPOLLIN, listener_tag)) {
    return Status(Code::unavailable, "rendezvous server: epoll: " + error_text(errno));
  }
  return std::unique_ptr<SocketServer>(new SocketServer(std::move(listening), epoll, std::move(settings), std::move(tls)));
}

SocketServer::SocketServer(Listening listening, int epoll, rendezvous::ServerSettings settings,
                           std::shared_ptr<const TlsContext> tls)
    : listening_(std::move(listening)), epoll_(epoll), tls_(std::move(tls)), machine_(std::move(settings)) {}

void SocketServer::poll(Nanos now) {
  if (accept_again_ <= now) {
    accept_again_ = never;
    rewatch(epoll_, listening_.socket(), EPOLLIN, listener_tag);
  }
  std::array<epoll_event, 128> events;
  const int count = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto number = events[static_cast<size_t>(i)].data.u64;
    const auto what = events[static_cast<size_t>(i)].events;
    if (number == listener_tag) {
      accept_some(now);
      continue;
    }
    const auto client = clients_.find(number);
    if (client != clients_.end() && (what & EPOLLOUT) != 0) write_some(number, client->second, now);
    if ((what & ~static_cast<uint32_t>(EPOLLOUT)) != 0) read_some(number, now);
  }
  if (machine_.next_deadline() <= now) machine_.woke(now);
  apply_sends(now);
  std::vector<uint64_t> over;
  for (const auto& [number, client] : clients_) {
    if (client.drain_until <= now) over.push_back(number);
  }
  for (const auto number : over) drop(number, now);
  apply_sends(now);
}

// Closes the oldest connection whose peer has not said hello, if there is one. Returns whether it has done so.
bool SocketServer::make_space(Nanos now) {
  const auto oldest = machine_.oldest_unauthenticated();
  if (oldest) drop(*oldest, now);
  return oldest.has_value();
}

void SocketServer::accept_some(Nanos now) {
  for (int i = 0; i < accepts_per_poll && listens_; ++i) {
    Descriptor socket(accept4(listening_.socket(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) {
      const int error = errno;
      const bool exhausted = is_out_of_descriptors(error) || error == ENOBUFS || error == ENOMEM;
      if (!exhausted) exhausted_since_ = never;
      else if (has_waiting(listening_.socket()) && make_space(now)) continue;
      // The connection stays in the kernel's queue. Without this pause, epoll would report it again at once.
      if (exhausted) {
        exhausted_since_ = std::min(exhausted_since_, now);
        accept_error_ = error_text(error);
        accept_again_ = now + accept_pause;
        rewatch(epoll_, listening_.socket(), 0, listener_tag);
      }
      return;
    }
    if (is_tcp(socket.get())) set_stream_options(socket.get());
    if (machine_.is_crowded()) (void)make_space(now);
    const auto number = next_number_++;
    auto from = describe_remote(socket.get());
    if (!watch(epoll_, socket.get(), EPOLLIN, number)) continue;
    clients_[number].channel = std::make_unique<RendezvousChannel>(std::move(socket));
    machine_.connected(number, std::move(from), now);
  }
}

// Learns from the first byte whether the client speaks TLS, and goes on with the handshake. Returns true if messages can be
// exchanged; otherwise the client may be gone.
bool SocketServer::open(uint64_t number, Client& client, Nanos now) {
  auto& channel = *client.channel;
  if (tls_ == nullptr) return client.opened = true;
  if (!channel.is_encrypted()) {
    std::byte first{};
    const auto count = recv(channel.socket(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    const bool later = count < 0 && (errno == EAGAIN || errno == EINTR);
    if (count <= 0 && !later) drop(number, now);
    if (count <= 0) return false;
    // The state machine answers a process in clear.
    if (first != tls_first_byte) return client.opened = true;
    channel.encrypt(tls_, TlsConnection::Role::server);
  }
  const auto done = channel.handshake();
  if (done == 0) {
    machine_.authenticated(number, channel.key_number());
    return client.opened = true;
  }
  if (!done) {
    update_watch(number, client);
  } else if (*done == EKEYREJECTED) {
    // The client has been told by an alert of TLS. What else it sends is read, so that the end of the connection does not
    // destroy the alert.
    client.opened = true;
    channel.abandon_tls();
    machine_.rejected(number, now);
  } else {
    drop(number, now);
  }
  return false;
}

void SocketServer::read_some(uint64_t number, Nanos now) {
  const auto it = clients_.find(number);
  if (it == clients_.end() || !it->second.channel) return;
  auto& client = it->second;
  if (!client.opened && !open(number, client, now)) return;
  std::array<std::byte, server_read_bytes> buffer;
  do {
    bool ended = false;
    const auto size = client.channel->read(buffer, ended);
    if (ended || size < 0) return drop(number, now);
    if (size == 0) break;
    client.read_bytes += static_cast<uint64_t>(size);
    machine_.received(number, ByteView(buffer).first(static_cast<size_t>(size)), now);
  } while (client.channel->has_buffered());
  update_watch(number, client);
}

void SocketServer::update_watch(uint64_t number, Client& client) {
  const bool wants_write = !client.queue.empty() || client.channel->has_unflushed();
  if (std::exchange(client.wants_write, wants_write) == wants_write) return;
  rewatch(epoll_, client.channel->socket(), EPOLLIN | (wants_write ? EPOLLOUT : 0u), number);
}

void SocketServer::write_some(uint64_t number, Client& client, Nanos now) {
  if (!client.channel) return;
  if (client.opened && client.queue.empty() && client.channel->has_unflushed()) (void)client.channel->write({});
  while (!client.queue.empty()) {
    const auto rest = ByteView(*client.queue.front()).subspan(client.sent_bytes);
    const auto size = client.channel->write(rest);
    if (size < 0) {  // The peer is gone. read_some() will tell the state machine.
      client.queue.clear();
      client.queued_bytes = 0;
      break;
    }
    client.sent_bytes += static_cast<size_t>(size);
    client.written_bytes += static_cast<uint64_t>(size);
    if (client.sent_bytes < client.queue.front()->size()) break;
    client.queued_bytes -= client.queue.front()->size();
    client.queue.pop_front();
    client.sent_bytes = 0;
  }
  update_watch(number, client);
  if (!client.wants_write && client.closing && client.drain_until == never) {
    // Shut down only the sending direction. If the socket were closed while there is unread input, a reset could destroy our
    // last message.
    (void)shutdown(client.channel->socket(), SHUT_WR);
    client.drain_until = now + drain_time;
  }
}

void SocketServer::apply_sends(Nanos now) {
  for (auto& send : machine_.take_sends()) {
    const auto it = clients_.find(send.to);
    if (it == clients_.end()) continue;
    auto& client = it->second;
    if (send.bytes && !client.closing) {
      client.queued_bytes += send.bytes->size();
      client.queue.push_back(std::move(send.bytes));
    }
    client.closing = client.closing || send.close;
    if (!client.channel) continue;  // take_local() takes the bytes
    if (client.queued_bytes > queue_bytes_max)
      // The peer does not read. read_some() will report the end of the connection.
      (void)shutdown(client.channel->socket(), SHUT_RDWR);
    write_some(send.to, client, now);
  }
}

void SocketServer::drop(uint64_t number, Nanos now) {
  clients_.erase(number);  // This closes the descriptor, which removes it from epoll.
  machine_.disconnected(number, now);
}

Nanos SocketServer::next_deadline() const {
  Nanos deadline = std::min(machine_.next_deadline(), accept_again_);
  for (const auto& [number, client] : clients_) deadline = std::min(deadline, client.drain_until);
  return deadline;
}

bool SocketServer::flushed() const {
  return std::all_of(clients_.begin(), clients_.end(), [](const auto& entry) {
    return !entry.second.channel || (entry.second.queue.empty() && !entry.second.channel->has_unflushed());
  });
}

bool SocketServer::make_local(uint64_t number, uint64_t sent, uint64_t received) {
  const auto it = clients_.find(number);
  if (it == clients_.end() || it->second.closing || !it->second.channel) return false;
  auto& client = it->second;
  if (!client.queue.empty() || client.read_bytes != sent || client.written_bytes != received) return false;
  unwatch(epoll_, client.channel->socket());
  client.channel.reset();
  return true;
}

void SocketServer::receive_local(uint64_t number, ByteView bytes, Nanos now) {
  machine_.received(number, bytes, now);
  apply_sends(now);
}

Bytes SocketServer::take_local(uint64_t number, bool& ended, Nanos now) {
  Bytes bytes;
  const auto it = clients_.find(number);
  ended = it == clients_.end() || it->second.closing;
  if (it == clients_.end()) return bytes;
  for (const auto& each : it->second.queue) bytes.insert(bytes.end(), each->begin(), each->end());
  it->second.queue.clear();
  it->second.queued_bytes = 0;
  if (ended) drop(number, now);
  return bytes;
}

void SocketServer::shut_down(const Status& why, Nanos now) {
  if (listens_) unwatch(epoll_, listening_.socket());
  listens_ = false;
  accept_again_ = never;
  machine_.shut_down(why, now);
  apply_sends(now);
}

}  // namespace unisono

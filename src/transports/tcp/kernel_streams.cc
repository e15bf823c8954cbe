#include "transports/tcp/kernel_streams.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "net/tcp_socket.h"
#include "transports/tcp/kernel_path.h"

namespace unisono {
namespace {

constexpr int backlog = 1024;
constexpr int port_tries = 16;  // how often to look for a port that is free at all addresses

// Both call `operation` again if a signal has interrupted it. "Later" is 0: nothing is available, or the buffer is full. If the
// kernel lacks memory, that is "later", too.
template <typename Operation>
ptrdiff_t written_by(Operation operation) {
  for (;;) {
    const auto count = operation();
    if (count >= 0) return count;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM ? 0 : -errno;
  }
}

template <typename Operation>
[[gnu::always_inline]] inline ptrdiff_t read_by(Operation operation, bool& ended) {
  ended = false;
  for (;;) {
    const auto count = operation();
    if (count > 0) return count;
    ended = count == 0;
    if (ended) return 0;
    if (errno == EINTR) continue;
    return errno == EAGAIN || errno == ENOMEM ? 0 : -errno;
  }
}

class KernelSocket final : public StreamSocket {
 public:
  // remote: the other side's address, if it is known already. The kernel forgets it when the connection has failed.
  explicit KernelSocket(Descriptor socket, const TcpAddress& remote = {}) : socket_(std::move(socket)), remote_(remote) {}
  ~KernelSocket() override { unwatch_socket(); }

  std::optional<int> connected() override {
    pollfd ready{socket_.get(), POLLOUT, 0};
    if (::poll(&ready, 1, 0) <= 0) return std::nullopt;
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    return error;
  }
  ptrdiff_t write(const iovec* parts, int count) override {
    constexpr int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // send() is cheaper than sendmsg().
    if (count == 1) return written_by([&] { return ::send(socket_.get(), parts->iov_base, parts->iov_len, flags); });
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(count);
    return written_by([&] { return ::sendmsg(socket_.get(), &message, flags); });
  }
  ptrdiff_t read(const iovec* parts, int count, bool& ended) override {
    // recv() is cheaper than recvmsg().
    if (count == 1) return read_by([&] { return ::recv(socket_.get(), parts->iov_base, parts->iov_len, MSG_DONTWAIT); }, ended);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<size_t>(count);
    return read_by([&] { return ::recvmsg(socket_.get(), &message, MSG_DONTWAIT); }, ended);
  }
  ptrdiff_t peek(std::span<std::byte> bytes, bool& ended) override {
    return read_by([&] { return ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_PEEK); }, ended);
  }
  bool encrypts() const override { return false; }
  bool has_unflushed() const override { return false; }
  int flush() override { return 0; }
  bool has_buffered() const override { return false; }
  uint64_t incomplete_record() const override { return 0; }
  void shut_down() override { (void)::shutdown(socket_.get(), SHUT_WR); }
  void abort() override {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    (void)::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  bool watch(StreamWatcher& watcher, bool readable, bool writable, uint64_t tag) override {
    const int epoll = watcher.wait_handle();
    const uint32_t events = (readable ? EPOLLIN : 0u) | (writable ? EPOLLOUT : 0u);
    if (events == 0 || epoll != epoll_) unwatch_socket();
    if (events == 0 || (events == events_ && tag == tag_)) return true;
    if (events_ != 0) rewatch(epoll, socket_.get(), events, tag);
    else if (!unisono::watch(epoll, socket_.get(), events, tag)) return false;
    epoll_ = epoll;
    events_ = events;
    tag_ = tag;
    return true;
  }

  void tune() override {
    set_congestion_control(socket_.get());
    bound_unacknowledged(socket_.get());
  }
  TcpAddress local() const override { return local_address(socket_.get()); }
  TcpAddress remote() const override { return remote_.bytes > 0 ? remote_ : remote_address(socket_.get()); }
  bool host_is_silent(Nanos silence) const override { return unisono::host_is_silent(socket_.get(), silence); }
  bool awaits_host(Nanos silence) const override { return unisono::awaits_host(socket_.get(), silence); }
  uint64_t unacknowledged_bytes() const override {
    int left = 0;
    return ::ioctl(socket_.get(), SIOCOUTQ, &left) == 0 ? static_cast<uint64_t>(left) : unknown;
  }
  void acknowledge_now() override {
    const int now = 1;
    (void)::setsockopt(socket_.get(), IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
  }
  Unacknowledged unacknowledged() const override { return unisono::unacknowledged(socket_.get()); }

 private:
  void unwatch_socket() {
    // A socket without events is not in the epoll set, which would report a hang-up again and again.
    if (std::exchange(events_, 0u) != 0) unwatch(epoll_, socket_.get());
  }

  Descriptor socket_;
  TcpAddress remote_;
  int epoll_ = -1;
  uint32_t events_ = 0;  // 0: no epoll set has this socket
  uint64_t tag_ = 0;
};

class KernelWatcher final : public StreamWatcher {
 public:
  explicit KernelWatcher(Descriptor epoll) : epoll_(std::move(epoll)) {}

  size_t ready(std::span<uint64_t> tags) override {
    std::array<epoll_event, 64> events;
    const auto space = static_cast<int>(std::min(events.size(), tags.size()));
    const int count = ::epoll_wait(epoll_.get(), events.data(), space, 0);
    for (int i = 0; i < count; ++i) tags[static_cast<size_t>(i)] = events[static_cast<size_t>(i)].data.u64;
    return static_cast<size_t>(std::max(count, 0));
  }
  int wait_handle() const override { return epoll_.get(); }
  bool report_to(StreamWatcher& outer, uint64_t tag) override { return watch(outer.wait_handle(), epoll_.get(), EPOLLIN, tag); }
  void stop_reporting_to(StreamWatcher& outer) override { unwatch(outer.wait_handle(), epoll_.get()); }

 private:
  Descriptor epoll_;
};

Descriptor open_spare() { return Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

TcpAddress any_address(int family) {
  TcpAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  // all bytes of the address are zero: this is the wildcard
  address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return address;
}

class KernelListener final : public StreamListener {
 public:
  explicit KernelListener(int epoll) : epoll_(epoll), spare_(open_spare()) {}
  ~KernelListener() override {
    for (const auto& socket : sockets_) unwatch(epoll_, socket.get());
  }

  Status open(const StreamListenRequest& request, uint64_t tag) {
    if (const int error = listen(request); error != 0) {
      auto where = request.addresses.empty() ? any_address(AF_INET) : request.addresses.front().address;
      where.set_port(request.port);
      return Status(Code::unavailable, "tcp: cannot listen at " + where.to_string() + ": " + error_text(error));
    }
    for (const auto& socket : sockets_) {
      if (!watch(epoll_, socket.get(), EPOLLIN, tag))
        return Status(Code::unavailable, "tcp: epoll cannot watch the listening socket: " + error_text(errno));
    }
    return {};
  }
  uint16_t port() const override { return port_; }
  StreamArrival accept() override;

 private:
  int listen(const StreamListenRequest& request);
  int listen_at(const TcpAddress& where, bool dual);
  int listen_everywhere();
  int listen_at_all(const std::vector<InterfaceAddress>& addresses);
  bool drop_one();

  int epoll_ = -1;
  std::vector<Descriptor> sockets_;
  size_t next_ = 0;  // the socket on which the next accept() calls first
  // A reserve. When no descriptor is free, it is closed for a moment, so that one connection can be accepted and closed.
  Descriptor spare_;
  uint16_t port_ = 0;
};

// Returns 0 or errno, like the functions below.
int KernelListener::listen(const StreamListenRequest& request) {
  int error = 0;
  for (int attempt = 0; attempt < port_tries; ++attempt) {
    sockets_.clear();
    port_ = request.port;
    error = request.addresses.empty() ? listen_everywhere() : listen_at_all(request.addresses);
    // The kernel has chosen a port that is free at the first address, but another process may use this port at a second
    // address. If that happens, try another port.
    if (error != EADDRINUSE || request.port != 0) break;
  }
  return error;
}

int KernelListener::listen_at(const TcpAddress& where, bool dual) {
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

int KernelListener::listen_everywhere() {
  const int error = listen_at(any_address(AF_INET6), true);
  if (error == 0 || error == EADDRINUSE || error == EACCES) return error;
  return listen_at(any_address(AF_INET), false);  // the host has no IPv6
}

int KernelListener::listen_at_all(const std::vector<InterfaceAddress>& addresses) {
  int last = EADDRNOTAVAIL;
  for (const auto& entry : addresses) {
    const int error = listen_at(entry.address, false);
    // Skip an address that the interface does not have at the moment. Any other error, such as a port that is taken, ends the
    // attempt.
    if (error != 0 && error != EADDRNOTAVAIL) return error;
    if (last != 0) last = error;
  }
  return last;
}

StreamArrival KernelListener::accept() {
  int last = 0;
  for (size_t tries = 0; tries < sockets_.size(); ++tries) {
    const auto& listening = sockets_[std::exchange(next_, (next_ + 1) % sockets_.size())];
    TcpAddress from;
    Descriptor socket;
    do {
      from.bytes = sizeof from.storage;
      auto* address = reinterpret_cast<sockaddr*>(&from.storage);
      socket = Descriptor(::accept4(listening.get(), address, &from.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
    } while (!socket.open() && (errno == ECONNABORTED || errno == EINTR));
    if (socket.open()) {
      set_stream_options(socket.get());
      return {.socket = std::make_unique<KernelSocket>(std::move(socket), from)};
    }
    const int error = errno;
    if (is_out_of_descriptors(error)) return {.error = error, .dropped = drop_one()};
    if (error != EAGAIN) last = error;
  }
  return {.error = last};
}

// Accepts a connection although no descriptor is free, and closes it. Returns false if none waits.
bool KernelListener::drop_one() {
  spare_.reset();
  bool dropped = false;
  for (size_t i = 0; i < sockets_.size() && !dropped; ++i) {
    const Descriptor unwanted(::accept4(sockets_[i].get(), nullptr, nullptr, SOCK_CLOEXEC));
    dropped = unwanted.open();
  }
  spare_ = open_spare();
  return dropped;
}

class KernelStreams final : public StreamNetwork {
 public:
  Result<std::vector<InterfaceAddress>> interfaces() override { return list_interfaces(); }

  Result<std::unique_ptr<StreamWatcher>> make_watcher(StreamWatcher* outer, uint64_t tag) override {
    Descriptor epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll.open() || (outer != nullptr && !watch(outer->wait_handle(), epoll.get(), EPOLLIN, tag))) {
      return Status(Code::unavailable, "tcp: cannot make an epoll descriptor: " + error_text(errno));
    }
    return std::unique_ptr<StreamWatcher>(std::make_unique<KernelWatcher>(std::move(epoll)));
  }

  Result<std::unique_ptr<StreamListener>> listen(const StreamListenRequest& request, StreamWatcher& watcher,
                                                 uint64_t tag) override {
    auto listener = std::make_unique<KernelListener>(watcher.wait_handle());
    if (auto status = listener->open(request, tag); !status.ok()) return status;
    return std::unique_ptr<StreamListener>(std::move(listener));
  }

  std::unique_ptr<StreamSocket> connect(const TcpAddress& to, std::span<const TcpAddress> sources, int& error) override {
    Descriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    error = socket.open() ? begin(socket.get(), to, sources) : errno;
    return error == 0 ? std::make_unique<KernelSocket>(std::move(socket)) : nullptr;
  }

 private:
  // Returns 0 or errno.
  static int begin(int socket, const TcpAddress& to, std::span<const TcpAddress> sources) {
    set_stream_options(socket);
    begin_without_pacing(socket);
    const auto same_kind = [&](const TcpAddress& source) {
      return source.family() == to.family() && source.is_link_local() == to.is_link_local() &&
             source.is_loopback() == to.is_loopback() && source.scope() == to.scope();
    };
    const auto source = std::find_if(sources.begin(), sources.end(), same_kind);
    if (source != sources.end()) {
      const int on = 1;
      (void)::setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
      if (::bind(socket, source->get(), source->bytes) != 0) return errno;
    }
    return ::connect(socket, to.get(), to.bytes) == 0 || errno == EINPROGRESS ? 0 : errno;
  }
};

}  // namespace

StreamNetwork& kernel_streams() {
  static KernelStreams streams;
  return streams;
}

}  // namespace unisono

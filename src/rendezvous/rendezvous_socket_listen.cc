#include "rendezvous/rendezvous_socket_listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/concat.h"

namespace unisono {

namespace {

constexpr int backlog = 4096;  // All ranks may dial at the same time. The kernel limits the number to net.core.somaxconn.

Status failed(Code code, const std::string& what, int error) { return {code, what + ": " + error_text(error)}; }

uint16_t port_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  if (address.storage.ss_family == AF_INET6) return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return 0;
}

SocketAddress wildcard(int family, uint16_t port) {
  SocketAddress address;
  if (family == AF_INET6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    v6->sin6_addr = in6addr_any;
    address.size = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    v4->sin_addr.s_addr = htonl(INADDR_ANY);
    address.size = sizeof(sockaddr_in);
  }
  return address;
}

// Parses a numeric address. The function looks up no names, so it never blocks.
Result<SocketAddress> numeric(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Status(Code::invalid, gai_strerror(error));
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

bool is_loopback(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET) {
    return (ntohl(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr) >> 24) == 127;
  }
  return address.storage.ss_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr);
}

Result<Descriptor> listen_on(const SocketAddress& address) {
  Descriptor socket(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) return failed(Code::unsupported, "no socket of this kind", errno);
  const int on = 1;
  const int off = 0;
  // Without this option, old connections of the last run could block the port, because they stay in the state TIME_WAIT for a
  // while.
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6) (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.get(), address.get(), address.size) != 0 || listen(socket.get(), backlog) != 0) {
    return failed(errno == EADDRINUSE ? Code::unavailable : Code::invalid, "cannot listen at " + address.to_string(), errno);
  }
  return socket;
}

// The path of a Unix socket must fit into 108 bytes. Therefore this function makes a path through /proc/self/fd, which is short
// even if the path of the folder is long.
Result<SocketAddress> unix_address(int folder, const std::string& folder_path, const std::string& name) {
  SocketAddress address;
  auto* unix_address = reinterpret_cast<sockaddr_un*>(&address.storage);
  unix_address->sun_family = AF_UNIX;
  std::string path = folder_path + "/" + name;
  if (path.size() >= sizeof(unix_address->sun_path)) path = concat("/proc/self/fd/", folder, "/", name);
  if (path.size() >= sizeof(unix_address->sun_path)) return Status(Code::invalid, "file name too long: " + name);
  std::memcpy(unix_address->sun_path, path.c_str(), path.size() + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

// Returns whether a process listens at the socket file. If none does, the file is left over from a dead process, or there is no
// file.
bool is_served(const SocketAddress& address) {
  const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (connect(socket.get(), address.get(), address.size) == 0) return true;
  return errno == EAGAIN;  // its queue of connections is full
}

// Says where the socket for file:///path is. If `path` is a folder, the socket is in that folder. If `path` is a file, the
// socket is in the same folder as the file.
struct FileLocation {
  Descriptor folder;
  std::string folder_path;
  std::string name;
  Descriptor lock;  // the path itself; a process holds a lock on it while it makes or removes the socket
};

Result<FileLocation> open_location(const std::string& path) {
  FileLocation location;
  location.lock = Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!location.lock.open()) return failed(errno == ENOENT ? Code::unavailable : Code::invalid, path, errno);
  struct stat info {};
  if (fstat(location.lock.get(), &info) != 0) return failed(Code::invalid, path, errno);
  if (S_ISDIR(info.st_mode)) {
    location.folder_path = path;
    location.name = "rendezvous.sock";
  } else if (S_ISREG(info.st_mode)) {
    const auto slash = path.rfind('/');
    location.folder_path = slash == 0 ? "/" : path.substr(0, slash);
    location.name = path.substr(slash + 1) + ".sock";
  } else {
    return Status(Code::invalid, path + ": neither a folder nor a file");
  }
  location.folder = Descriptor(open(location.folder_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!location.folder.open()) return failed(Code::invalid, location.folder_path, errno);
  return location;
}

}  // namespace

std::string SocketAddress::host() const {
  char text[NI_MAXHOST] = "?";
  if (storage.ss_family == AF_UNIX) return "this host";
  (void)getnameinfo(get(), size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return text;
}

std::string SocketAddress::to_string() const {
  if (storage.ss_family == AF_UNIX) return "this host";
  const std::string text = host();
  return concat(storage.ss_family == AF_INET6 ? "[" + text + "]" : text, ":", port_of(*this));
}

SocketAddress bound_address(int socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address = {};
  return address;
}

SocketAddress peer_address(int socket) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  if (getpeername(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) address = {};
  return address;
}

bool is_local(const SocketAddress& address) {
  SocketAddress any_port = address;
  if (any_port.storage.ss_family == AF_INET) reinterpret_cast<sockaddr_in*>(&any_port.storage)->sin_port = 0;
  if (any_port.storage.ss_family == AF_INET6) reinterpret_cast<sockaddr_in6*>(&any_port.storage)->sin6_port = 0;
  const Descriptor socket(::socket(any_port.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket.open() && bind(socket.get(), any_port.get(), any_port.size) == 0;
}

Result<Listening> Listening::open(const RendezvousAddress& address) {
  return address.kind == RendezvousAddress::Kind::file ? open_file(address) : open_tcp(address, false);
}

Result<Listening> Listening::open_only(const RendezvousAddress& address) { return open_tcp(address, true); }

Result<Listening> Listening::adopt(int socket) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0)
    return failed(Code::invalid, concat("UNISONO_LISTEN_FD=", socket), errno);
  if (listens == 0) return Status(Code::invalid, concat("UNISONO_LISTEN_FD=", socket, " is not a listening socket"));
  // Duplicate the descriptor, so that the launcher's descriptor can still be used for another group of this process.
  Descriptor own(fcntl(socket, F_DUPFD_CLOEXEC, 3));
  if (!own.open()) return failed(Code::unavailable, "UNISONO_LISTEN_FD", errno);
  (void)fcntl(own.get(), F_SETFL, fcntl(own.get(), F_GETFL) | O_NONBLOCK);
  const auto local = bound_address(own.get());
  return Listening(std::move(own),
                   {.kind = RendezvousAddress::Kind::tcp, .host = local.host(), .port = port_of(local), .path = {}});
}

Result<Listening> Listening::open_tcp(const RendezvousAddress& address, bool only) {
  // This host may resolve its own name to an address that other hosts cannot reach (127.0.1.1 on Debian). Therefore the server
  // listens at all addresses, unless all given addresses are loopback addresses. Of several, it uses the first.
  const auto first = is_on_this_host(address) ? address.host.substr(0, address.host.find(',')) : address.host;
  const auto literal = numeric(first == "localhost" ? "127.0.0.1" : first, address.port);
  const bool here_only = literal.ok() && (only || is_loopback(*literal));
  auto socket = here_only ? listen_on(*literal) : listen_on(wildcard(AF_INET6, address.port));
  const bool no_v6 = !socket.ok() && socket.status().code() != Code::unavailable;
  if (no_v6 && !here_only) socket = listen_on(wildcard(AF_INET, address.port));
  if (!socket.ok()) return socket.status();
  RendezvousAddress real = address;
  real.port = port_of(bound_address(socket->get()));
  return Listening(std::move(*socket), std::move(real));
}

Result<Listening> Listening::open_file(const RendezvousAddress& address) {
  if (mkdir(address.path.c_str(), 0700) != 0 && errno != EEXIST)
    return failed(Code::invalid, "cannot make the folder " + address.path, errno);
  auto location = open_location(address.path);
  if (!location.ok()) return Status(Code::invalid, location.status().message());
  if (flock(location->lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return failed(errno == EWOULDBLOCK ? Code::unavailable : Code::invalid, "cannot lock " + address.path, errno);
  }
  auto where = unix_address(location->folder.get(), location->folder_path, location->name);
  if (!where.ok()) return where.status();
  if (is_served(*where)) return Status(Code::unavailable, "another process serves at " + address.path);
  // This process holds the lock, so no other process replaces the socket file at the same time.
  (void)unlinkat(location->folder.get(), location->name.c_str(), 0);
  auto socket = listen_on(*where);
  if (!socket.ok()) return Status(socket.status().code(), address.to_string() + ": " + socket.status().message());
  Listening listening(std::move(*socket), address);
  listening.socket_file_ = identity_of(location->folder.get(), location->name);
  return listening;
}

std::optional<Listening::FileIdentity> Listening::identity_of(int folder, const std::string& name) {
  struct stat info {};
  if (fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return std::nullopt;
  return FileIdentity{info.st_dev, info.st_ino};
}

Listening::~Listening() {
  if (!socket_.open() || !socket_file_) return;
  // The object keeps no descriptor of the folder and no lock, because a group shall take few descriptors. If the socket file
  // cannot be removed here, the next server replaces it.
  const auto location = open_location(address_.path);
  if (!location.ok() || flock(location->lock.get(), LOCK_EX | LOCK_NB) != 0) return;
  if (identity_of(location->folder.get(), location->name) == socket_file_)
    (void)unlinkat(location->folder.get(), location->name.c_str(), 0);
}

Result<Descriptor> dial_file(const std::string& path) {
  auto location = open_location(path);
  if (!location.ok()) return location.status();
  auto where = unix_address(location->folder.get(), location->folder_path, location->name);
  if (!where.ok()) return where.status();
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) return failed(Code::unavailable, "no socket", errno);
  if (connect(socket.get(), where->get(), where->size) == 0) return socket;
  const bool later = errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN;
  return failed(later ? Code::unavailable : Code::invalid, "no server", errno);
}

struct Resolver::Shared {
  Descriptor event;
  std::mutex mutex;
  bool done = false;  // `mutex` guards `done`, `addresses` and `error`.
  std::vector<SocketAddress> addresses;
  std::string error;
};

namespace {

std::vector<std::string> split_hosts(const std::string& hosts) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= hosts.size();) {
    const auto end = std::min(hosts.find(',', at), hosts.size());
    all.push_back(hosts.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

Result<std::vector<SocketAddress>> look_up(const std::string& host, uint16_t port) {
  if (const auto literal = numeric(host, port); literal.ok()) return std::vector{*literal};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) return Status(Code::unavailable, error == EAI_SYSTEM ? error_text(errno) : gai_strerror(error));
  std::vector<SocketAddress> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

}  // namespace

Result<Resolver> Resolver::start(const std::string& host, uint16_t port) {
  auto shared = std::make_shared<Shared>();
  shared->event = Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!shared->event.open()) return failed(Code::unavailable, "eventfd", errno);
  const auto hosts = split_hosts(host);
  const auto work = [shared, hosts, port] {
    for (const auto& one : hosts) {
      auto found = look_up(one, port);
      const std::lock_guard lock(shared->mutex);
      if (!found.ok()) shared->error = found.status().message();
      else shared->addresses.insert(shared->addresses.end(), found->begin(), found->end());
    }
    const std::lock_guard lock(shared->mutex);
    shared->done = true;
    (void)eventfd_write(shared->event.get(), 1);
  };
  if (std::ranges::all_of(hosts,
                          // Numeric addresses need no thread, because they are parsed at once.
                          [&](const auto& one) { return numeric(one, port).ok(); })) {
    work();
    return Resolver(std::move(shared));
  }
  // The thread is detached, because getaddrinfo cannot be canceled. It may outlive the Resolver, so it shares the ownership of
  // everything that it uses.
  std::thread(work).detach();
  return Resolver(std::move(shared));
}

int Resolver::ready() const { return shared_->event.get(); }

bool Resolver::done() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->done;
}

Result<std::vector<SocketAddress>> Resolver::take() {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->addresses.empty()) return Status(Code::unavailable, shared_->error.empty() ? "no address" : shared_->error);
  return std::move(shared_->addresses);
}

}  // namespace unisono

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

namespace unisono {

namespace {

constexpr int backlog = 4096;  // a whole world may dial at once; the kernel cuts it to net.core.somaxconn

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

// Numeric addresses only, so it never blocks.
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
  (void)setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));  // ports of the last run may be in TIME_WAIT
  if (address.storage.ss_family == AF_INET6) (void)setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  if (bind(socket.get(), address.get(), address.size) != 0 || listen(socket.get(), backlog) != 0) {
    return failed(errno == EADDRINUSE ? Code::unavailable : Code::invalid, "cannot listen at " + address.to_string(), errno);
  }
  return socket;
}

// A Unix socket's path must fit into 108 bytes; a path through /proc makes any folder short enough.
Result<SocketAddress> unix_address(int folder, const std::string& folder_path, const std::string& name) {
  SocketAddress address;
  auto* unix_address = reinterpret_cast<sockaddr_un*>(&address.storage);
  unix_address->sun_family = AF_UNIX;
  std::string path = folder_path + "/" + name;
  if (path.size() >= sizeof(unix_address->sun_path)) path = "/proc/self/fd/" + std::to_string(folder) + "/" + name;
  if (path.size() >= sizeof(unix_address->sun_path)) return Status(Code::invalid, "file name too long: " + name);
  std::memcpy(unix_address->sun_path, path.c_str(), path.size() + 1);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size() + 1);
  return address;
}

// Where the socket for file:///path is: in the folder `path`, or beside the file `path`.
struct FilePlace {
  Descriptor folder;
  std::string folder_path;
  std::string name;
  Descriptor lock;
};

Result<FilePlace> open_place(const std::string& path) {
  FilePlace place;
  place.lock = Descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!place.lock.open()) return failed(errno == ENOENT ? Code::unavailable : Code::invalid, path, errno);
  struct stat info {};
  if (fstat(place.lock.get(), &info) != 0) return failed(Code::invalid, path, errno);
  if (S_ISDIR(info.st_mode)) {
    place.folder_path = path;
    place.name = "rendezvous.sock";
  } else if (S_ISREG(info.st_mode)) {
    const auto slash = path.rfind('/');
    place.folder_path = slash == 0 ? "/" : path.substr(0, slash);
    place.name = path.substr(slash + 1) + ".sock";
  } else {
    return Status(Code::invalid, path + ": neither a folder nor a file");
  }
  place.folder = Descriptor(open(place.folder_path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!place.folder.open()) return failed(Code::invalid, place.folder_path, errno);
  return place;
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
  return (storage.ss_family == AF_INET6 ? "[" + text + "]" : text) + ":" + std::to_string(port_of(*this));
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
  return address.kind == RendezvousAddress::Kind::file ? open_file(address) : open_tcp(address);
}

Result<Listening> Listening::adopt(int socket) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(socket, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0)
    return failed(Code::invalid, "UNISONO_LISTEN_FD=" + std::to_string(socket), errno);
  if (listens == 0) return Status(Code::invalid, "UNISONO_LISTEN_FD=" + std::to_string(socket) + " is not a listening socket");
  // A copy, so that the launcher's descriptor stays usable for another group of this process.
  Descriptor own(fcntl(socket, F_DUPFD_CLOEXEC, 3));
  if (!own.open()) return failed(Code::unavailable, "UNISONO_LISTEN_FD", errno);
  (void)fcntl(own.get(), F_SETFL, fcntl(own.get(), F_GETFL) | O_NONBLOCK);
  const auto local = bound_address(own.get());
  return Listening(std::move(own),
                   {.kind = RendezvousAddress::Kind::tcp, .host = local.host(), .port = port_of(local), .path = {}});
}

Result<Listening> Listening::open_tcp(const RendezvousAddress& address) {
  // A host name may lead to another address here than elsewhere (127.0.1.1 on Debian). So the server listens at every address,
  // unless the given one is a numeric loopback address.
  const std::string host = address.host == "localhost" ? "127.0.0.1" : address.host;
  const auto literal = numeric(host, address.port);
  auto socket = literal.ok() && is_loopback(*literal) ? listen_on(*literal) : listen_on(wildcard(AF_INET6, address.port));
  const bool no_v6 = !socket.ok() && socket.status().code() != Code::unavailable;
  if (no_v6 && !(literal.ok() && is_loopback(*literal))) socket = listen_on(wildcard(AF_INET, address.port));
  if (!socket.ok()) return socket.status();
  RendezvousAddress real = address;
  real.port = port_of(bound_address(socket->get()));
  return Listening(std::move(*socket), std::move(real));
}

Result<Listening> Listening::open_file(const RendezvousAddress& address) {
  if (mkdir(address.path.c_str(), 0700) != 0 && errno != EEXIST)
    return failed(Code::invalid, "cannot make the folder " + address.path, errno);
  auto place = open_place(address.path);
  if (!place.ok()) return Status(Code::invalid, place.status().message());
  if (flock(place->lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return failed(errno == EWOULDBLOCK ? Code::unavailable : Code::invalid, "cannot lock " + address.path, errno);
  }
  auto where = unix_address(place->folder.get(), place->folder_path, place->name);
  if (!where.ok()) return where.status();
  // The lock is ours, so an existing socket belongs to a dead process.
  (void)unlinkat(place->folder.get(), place->name.c_str(), 0);
  auto socket = listen_on(*where);
  if (!socket.ok()) return Status(socket.status().code(), address.to_string() + ": " + socket.status().message());
  Listening listening(std::move(*socket), address);
  listening.folder_ = std::move(place->folder);
  listening.lock_ = std::move(place->lock);
  listening.socket_name_ = place->name;
  return listening;
}

Listening::~Listening() {
  if (socket_.open() && folder_.open()) (void)unlinkat(folder_.get(), socket_name_.c_str(), 0);  // while we hold the lock
}

Result<Descriptor> dial_file(const std::string& path) {
  auto place = open_place(path);
  if (!place.ok()) return place.status();
  auto where = unix_address(place->folder.get(), place->folder_path, place->name);
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
  bool done = false;  // the mutex guards it and the next two
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
                          [&](const auto& one) { return numeric(one, port).ok(); })) {  // numeric addresses need no thread
    work();
    return Resolver(std::move(shared));
  }
  // The thread is not joined: it owns everything that it touches, and nobody can cancel getaddrinfo.
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

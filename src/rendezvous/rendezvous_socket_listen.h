// Where a rendezvous server listens and how processes find it: TCP addresses, and the Unix socket behind file:///path.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "net/tcp_socket.h"
#include "rendezvous/environment.h"
#include "unisono/status.h"

namespace unisono {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  // "10.0.0.2", "[::1]:4711": without and with port.
  std::string host() const;
  std::string to_string() const;
};
SocketAddress bound_address(int socket);
SocketAddress peer_address(int socket);
// Whether an address belongs to this host, that is, whether a socket can be bound to it.
bool is_local(const SocketAddress& address);

// A listening socket; its destructor removes what it made.
class Listening {
 public:
  // Listens for everyone; at a loopback address only for this host. Returns unavailable if another process listens there now.
  static Result<Listening> open(const RendezvousAddress& address);
  // Takes over a socket that a launcher made. Returns invalid if it does not listen.
  static Result<Listening> adopt(int socket);
  Listening(Listening&&) = default;
  Listening& operator=(Listening&&) = default;
  ~Listening();

  int socket() const { return socket_.get(); }
  // The address with the real port where 0 was requested.
  const RendezvousAddress& address() const { return address_; }

 private:
  Listening(Descriptor socket, RendezvousAddress address) : socket_(std::move(socket)), address_(std::move(address)) {}
  static Result<Listening> open_tcp(const RendezvousAddress& address);
  static Result<Listening> open_file(const RendezvousAddress& address);

  Descriptor socket_;
  RendezvousAddress address_;
  // file: the folder of the socket, and a lock that the kernel releases when this process dies. So a socket left behind is
  // recognised as stale, and is replaced.
  Descriptor folder_;
  Descriptor lock_;
  std::string socket_name_;
};

// Connects to the Unix socket behind file:///path without blocking. Returns unavailable while nobody serves there.
Result<Descriptor> dial_file(const std::string& path);

// Resolves a name on its own thread, because the system's resolver can block for half a minute.
class Resolver {
 public:
  // ready() is a descriptor that becomes readable when done() becomes true.
  static Result<Resolver> start(const std::string& host, uint16_t port);
  int ready() const;
  bool done() const;
  // After done(): the addresses, or the resolver's error.
  Result<std::vector<SocketAddress>> take();

 private:
  struct Shared;
  explicit Resolver(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace unisono

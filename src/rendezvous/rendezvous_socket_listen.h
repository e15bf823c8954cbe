// The sockets of the rendezvous: how to listen, and how to find the server. A socket is a TCP socket, or the Unix socket for
// file:///path.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
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
  // host() returns the address without the port, such as "10.0.0.2". to_string() returns both, such as "[::1]:4711".
  std::string host() const;
  std::string to_string() const;
};
SocketAddress bound_address(int socket);
SocketAddress peer_address(int socket);
// Returns whether the address belongs to this host. That is the case if a socket can be bound to it.
bool is_local(const SocketAddress& address);

// A listening socket. If there is a socket file, the destructor removes it.
class Listening {
 public:
  // If the address is a loopback address, listens only there. Otherwise listens at all addresses of this host. Returns
  // unavailable if another process listens there.
  static Result<Listening> open(const RendezvousAddress& address);
  // Listens at this numeric tcp address only.
  static Result<Listening> open_only(const RendezvousAddress& address);
  // Uses a listening socket that a launcher has made. Returns invalid if the socket does not listen.
  static Result<Listening> adopt(int socket);
  Listening(Listening&&) = default;
  Listening& operator=(Listening&&) = default;
  ~Listening();

  int socket() const { return socket_.get(); }
  // Returns the address. If port 0 was requested, it has the port that the kernel has chosen.
  const RendezvousAddress& address() const { return address_; }

 private:
  Listening(Descriptor socket, RendezvousAddress address) : socket_(std::move(socket)), address_(std::move(address)) {}
  static Result<Listening> open_tcp(const RendezvousAddress& address, bool only);
  static Result<Listening> open_file(const RendezvousAddress& address);

  // Identifies a file, whatever its name is.
  struct FileIdentity {
    uint64_t device = 0, number = 0;
    friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
  };
  static std::optional<FileIdentity> identity_of(int folder, const std::string& name);

  Descriptor socket_;
  RendezvousAddress address_;
  std::optional<FileIdentity> socket_file_;  // used by kind file: the socket file that this object has made
};

// Connects to the Unix socket that belongs to file:///path, without blocking. Returns unavailable if no server listens there.
// After an error, errno says which system call failed and why.
Result<Descriptor> dial_file(const std::string& path);

// Resolves a name in a thread of its own, because the system's resolver can block for half a minute.
class Resolver {
 public:
  // Starts to resolve `host`. After an error, errno says why. When done() becomes true, the descriptor that ready() returns
  // becomes readable.
  static Result<Resolver> start(const std::string& host, uint16_t port);
  int ready() const;
  bool done() const;
  // Returns the addresses, or the error of the resolver. Call it when done() is true.
  Result<std::vector<SocketAddress>> take();

 private:
  struct Shared;
  explicit Resolver(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  std::shared_ptr<Shared> shared_;
};

}  // namespace unisono

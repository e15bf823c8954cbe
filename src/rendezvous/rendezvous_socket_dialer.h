// One process's connection to the rendezvous. It resolves the name, dials each address repeatedly with back-off, and carries
// bytes for the state machine (rendezvous/rendezvous_client). It counts its attempts for the error message. Nothing blocks; the
// owner calls poll() when its epoll is readable or next_deadline() has come.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono {

class Dialer {
 public:
  // Watches its sockets in `epoll`. Both must outlive it.
  Dialer(const RendezvousAddress& address, rendezvous::Client& client, int epoll)
      : address_(address), client_(client), epoll_(epoll) {}
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  void poll(Nanos now);
  Nanos next_deadline() const;
  // Sends bytes on the open connection.
  void send(const Bytes& bytes, Nanos now);
  bool flushed() const { return queue_.empty(); }
  void hang_up();

  // "connection refused 41 times over 3.2 s; tried addresses 127.0.0.1, ::1"
  std::string history(Nanos now) const;
  // How often a program accepted the connection and then said nothing, or closed it without an answer; perhaps another program.
  uint32_t times_ignored() const { return times_ignored_; }
  // Failed rounds over all addresses. It grows by one each time, so that the owner may then try something else.
  uint32_t rounds() const { return rounds_; }
  // Whether one of the addresses tried is this host's own.
  bool leads_here() const;

 private:
  enum class State : uint8_t { waiting, resolving, connecting, connected };

  void resolve(Nanos now);
  void on_resolved(Nanos now);
  void connect_next(Nanos now);
  void on_connected(Nanos now);
  void read(Nanos now);
  void write(Nanos now);
  // Counts a failed attempt, and goes on to the next address or waits.
  void failed(const std::string& why, Nanos now);
  void close_socket();

  const RendezvousAddress address_;
  rendezvous::Client& client_;
  const int epoll_;
  State state_ = State::waiting;
  Nanos deadline_ = 0;  // deadline of what state_ waits for
  Nanos pause_ = 0;
  std::optional<Resolver> resolver_;
  std::vector<SocketAddress> addresses_;
  Nanos resolved_at_ = 0;
  size_t next_address_ = 0;
  Descriptor socket_;
  Bytes queue_;
  bool wants_write_ = false;

  Nanos first_try_ = -1;
  std::map<std::string, uint32_t> failures_;
  std::string last_failure_;
  uint32_t times_ignored_ = 0;
  uint32_t rounds_ = 0;
};

}  // namespace unisono

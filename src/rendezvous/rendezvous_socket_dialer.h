// The connection of one process to the rendezvous. The dialer resolves the name and dials its addresses repeatedly, with
// growing pauses. It passes bytes between the socket and the state machine rendezvous/rendezvous_client. It also counts its
// attempts for the error message. Nothing blocks. The owner calls poll() when its epoll descriptor is readable, or when
// next_deadline() has come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_channel.h"
#include "rendezvous/rendezvous_client.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono {

// In the epoll set of the dialer's owner, all descriptors of the dialer have this tag.
inline constexpr uint64_t dialer_tag = UINT64_MAX;

class Dialer {
 public:
  // The dialer registers its sockets with `epoll`. `client` and `epoll` must outlive the dialer. If `tls` is not null, each
  // connection begins with TLS, and a server that does not know the key ends the client (Client::refuse).
  Dialer(const RendezvousAddress& address, rendezvous::Client& client, int epoll,
         std::shared_ptr<const TlsContext> tls = nullptr)
      : address_(address), client_(client), epoll_(epoll), tls_(std::move(tls)) {}
  ~Dialer();
  Dialer(const Dialer&) = delete;
  Dialer& operator=(const Dialer&) = delete;

  void poll(Nanos now);
  Nanos next_deadline() const;
  // Sends bytes on the connection, which must be open.
  void send(const Bytes& bytes, Nanos now);
  bool flushed() const { return queue_.empty() && (!channel_ || !channel_->has_unflushed()); }
  // How many bytes of the protocol the connection has carried in each direction.
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }
  void hang_up();

  // Returns a text like "connection refused 41 times over 3.2 s; tried addresses 127.0.0.1, ::1".
  std::string history(Nanos now) const;
  // Returns how many connections were accepted and then ended without an answer. If there are many, the other end may be
  // another program.
  uint32_t times_ignored() const { return times_ignored_; }
  // Returns how often the dialer has tried all addresses without success. After each such round, the owner may try to open the
  // server itself.
  uint32_t rounds() const { return rounds_; }
  // Returns whether the last attempt failed because no descriptor was free. history() names the limit.
  bool exhausted() const { return exhausted_; }
  // Returns whether one of the addresses that were dialed belongs to this host.
  bool is_this_host() const;
  // Returns true if the address has been looked up, and leads to this host only. (A file is always on this host, so the result
  // is then false.)
  bool leads_only_here() const;

 private:
  enum class State : uint8_t { waiting, resolving, connecting, connected };

  void resolve(Nanos now);
  void on_resolved(Nanos now);
  void connect_next(Nanos now);
  void on_connected(Nanos now);
  bool can_exchange(Nanos now);
  void on_rejected();
  void read(Nanos now);
  void write(Nanos now);
  void update_watch();
  // Counts an attempt that has failed. Then tries the next address, or waits before the next round.
  void failed(const std::string& why, Nanos now);
  void close_socket();

  const RendezvousAddress address_;
  rendezvous::Client& client_;
  const int epoll_;
  const std::shared_ptr<const TlsContext> tls_;
  State state_ = State::waiting;
  Nanos deadline_ = 0;  // when the time for the current state_ is over
  Nanos pause_ = 0;
  std::optional<Resolver> resolver_;
  std::vector<SocketAddress> addresses_;
  Nanos resolved_at_ = 0;
  size_t next_address_ = 0;
  std::unique_ptr<RendezvousChannel> channel_;
  Bytes queue_;
  uint64_t sent_bytes_ = 0, received_bytes_ = 0;
  bool wants_write_ = false;

  Nanos first_try_ = -1;
  std::map<std::string, uint32_t> failures_;
  std::string last_failure_;
  uint32_t times_ignored_ = 0;
  uint32_t rounds_ = 0;
  bool exhausted_ = false;
};

}  // namespace unisono

// The rendezvous server over sockets: accepts, reads and writes for the state machine (rendezvous/rendezvous_server). Nothing
// blocks; the owner calls poll() when wait_handle() is readable or next_deadline() has come.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_server.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono {

class SocketServer {
 public:
  static Result<std::unique_ptr<SocketServer>> make(Listening listening, rendezvous::ServerSettings settings);

  void poll(Nanos now);
  int wait_handle() const { return epoll_.get(); }
  Nanos next_deadline() const;
  // True if the kernel has all bytes for the clients.
  bool flushed() const;
  // Sends every connection the reason, and accepts no more.
  void shut_down(const Status& why, Nanos now);
  // How often a connection had to wait because this process had no descriptors left.
  uint64_t accepts_failed() const { return accepts_failed_; }
  const RendezvousAddress& address() const { return listening_.address(); }
  rendezvous::Server& machine() { return machine_; }

 private:
  struct Client {
    Descriptor socket;
    std::deque<std::shared_ptr<const Bytes>> queue;
    size_t sent_bytes = 0;      // of the first in the queue
    size_t queued_bytes = 0;    // of all in the queue
    bool closing = false;       // ends when the queue is empty
    Nanos drain_until = never;  // our side is shut down; the other may still read
    bool wants_write = false;
  };

  SocketServer(Listening listening, Descriptor epoll, rendezvous::ServerSettings settings);
  void accept_some(Nanos now);
  void read_some(uint64_t number, Nanos now);
  void write_some(uint64_t number, Client& client, Nanos now);
  void apply_sends(Nanos now);
  void drop(uint64_t number, Nanos now);

  Listening listening_;
  Descriptor epoll_;
  rendezvous::Server machine_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_number_ = 1;  // 0 is the listening socket
  bool listens_ = true;
  Nanos accept_again_ = never;
  uint64_t accepts_failed_ = 0;
};

}  // namespace unisono

// The rendezvous server over sockets. It accepts connections, and reads and writes for the state machine
// rendezvous/rendezvous_server. Nothing blocks. The owner calls poll() when its epoll descriptor is readable, or when
// next_deadline() has come.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "net/tcp_socket.h"
#include "rendezvous/rendezvous_channel.h"
#include "rendezvous/rendezvous_server.h"
#include "rendezvous/rendezvous_socket_listen.h"

namespace unisono {

class SocketServer {
 public:
  // The server registers its sockets with `epoll`, which must outlive it. The owner may register other descriptors there, with
  // tags that no connection has (numbers from 0). If `tls` is not null, it takes only processes that have one of its
  // `settings.key_count` keys.
  static Result<std::unique_ptr<SocketServer>> make(Listening listening, rendezvous::ServerSettings settings, int epoll,
                                                    std::shared_ptr<const TlsContext> tls = nullptr);

  void poll(Nanos now);
  Nanos next_deadline() const;
  // Returns true if the kernel has taken all bytes for all clients that have a socket.
  bool flushed() const;

  // A client in this process needs no socket. make_local() closes the socket of such a client; its connection stays. The client
  // must have sent `sent` bytes and received `received` bytes. Returns false, and changes nothing, while bytes are on the way.
  bool make_local(uint64_t number, uint64_t sent, uint64_t received);
  // Hands over bytes of the local client.
  void receive_local(uint64_t number, ByteView bytes, Nanos now);
  // Takes the bytes for the local client. Sets `ended` if the server has ended the connection.
  Bytes take_local(uint64_t number, bool& ended, Nanos now);

  // Sends the reason on all connections, and accepts no new ones.
  void shut_down(const Status& why, Nanos now);
  // Returns since when connections have waited that could not be accepted, because no descriptor or no memory was free. Returns
  // `never` if none waits. accept_error() says why.
  Nanos exhausted_since() const { return exhausted_since_; }
  const std::string& accept_error() const { return accept_error_; }
  const RendezvousAddress& address() const { return listening_.address(); }
  rendezvous::Server& machine() { return machine_; }

 private:
  struct Client {
    std::unique_ptr<RendezvousChannel> channel;  // null: the client is local
    bool opened = false;                         // true: messages can be exchanged, or it was refused before that
    std::deque<std::shared_ptr<const Bytes>> queue;
    size_t sent_bytes = 0;      // how many bytes of the first queue element have been sent
    size_t queued_bytes = 0;    // the bytes of all elements in the queue
    bool closing = false;       // true: close the connection when the queue is empty
    Nanos drain_until = never;  // Set after shutdown(SHUT_WR). Until this time, the peer may still read.
    bool wants_write = false;
    uint64_t read_bytes = 0, written_bytes = 0;  // how many bytes the connection has carried in each direction
  };

  SocketServer(Listening listening, int epoll, rendezvous::ServerSettings settings, std::shared_ptr<const TlsContext> tls);
  void accept_some(Nanos now);
  bool make_space(Nanos now);
  bool open(uint64_t number, Client& client, Nanos now);
  void update_watch(uint64_t number, Client& client);
  void read_some(uint64_t number, Nanos now);
  void write_some(uint64_t number, Client& client, Nanos now);
  void apply_sends(Nanos now);
  void drop(uint64_t number, Nanos now);

  Listening listening_;
  const int epoll_;
  const std::shared_ptr<const TlsContext> tls_;
  rendezvous::Server machine_;
  std::map<uint64_t, Client> clients_;
  uint64_t next_number_ = 1;  // Connection numbers start at 1, because the epoll tag 0 belongs to the listening socket.
  bool listens_ = true;
  Nanos accept_again_ = never;
  Nanos exhausted_since_ = never;
  std::string accept_error_;
};

}  // namespace unisono

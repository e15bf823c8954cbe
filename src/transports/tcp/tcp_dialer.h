// Makes the connections of one link. It tries the peer's addresses in a staggered way, keeps the first that completes a
// handshake, and opens the other streams to the same address.
//
// When every address has failed, it starts over with growing delays until its owner's deadline: the peer may not listen yet.
// Only answers that cannot change (another version, another job) exclude an address for good.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "net/tcp_socket.h"
#include "transports/tcp/tcp_handshake.h"

namespace unisono {

struct TcpDialRequest {
  TcpHello hello;                      // stream_count is set; the dialer fills in the rest
  std::vector<TcpAddress> candidates;  // best first
  std::vector<TcpAddress> sources;     // own addresses to dial from, if an interface was chosen; else empty
  int epoll = -1;                      // watches the sockets of this dialer
};

class TcpDialer {
 public:
  // The next address is tried after this time without an answer. It is longer than a round trip between hosts of one site, and
  // short enough for a waiting user.
  static constexpr Nanos stagger = 100 * millisecond;
  static constexpr Nanos retry_first = 20 * millisecond;
  static constexpr Nanos retry_last = 500 * millisecond;

  explicit TcpDialer(TcpDialRequest request);
  ~TcpDialer();
  TcpDialer(const TcpDialer&) = delete;
  TcpDialer& operator=(const TcpDialer&) = delete;

  bool step(Nanos now);
  bool complete() const { return won_ == request_.hello.stream_count; }
  // All streams, by index, once complete. epoll does not watch them any more.
  std::vector<Descriptor> take();
  // For a hello without an id: the process that listens there. The handshake continues only after go_on().
  std::optional<PeerId> introduced() const { return introduced_; }
  void go_on();
  // No address can ever work.
  bool hopeless() const;
  // Every address refused: nobody listens there, or another process does.
  bool refused_everywhere() const;
  // "10.0.0.1:4: connection refused; [::1]:4: no answer".
  std::string failures() const;
  Nanos next_deadline() const { return next_event_; }

 private:
  enum class Phase : uint8_t { connecting, replying, introduced, accepted };
  struct Attempt {
    size_t candidate = 0;
    uint16_t stream = 0;
    Phase phase = Phase::connecting;
    Descriptor socket;
    TcpIntroduction answer;
    size_t answer_bytes = 0;
  };
  struct Candidate {
    // A failure is kept through later tries that have not ended yet: it says more than "no answer".
    std::string error{};
    const char* progress = "not tried yet";
    bool hopeless = false;
    bool refused_everywhere = false;  // by the last try
  };
  enum class Outcome : uint8_t { pending, accepted, failed };

  void start(size_t candidate, uint16_t stream);
  int open_socket(const TcpAddress& address, Descriptor& socket) const;
  Outcome advance(Attempt& attempt);
  Outcome send_hello(Attempt& attempt);
  Outcome read_reply(Attempt& attempt);
  Outcome introduced(Attempt& attempt);
  Outcome failed(const Attempt& attempt, std::string why);
  Outcome failed(const Attempt& attempt, int error);
  void drop(Attempt& attempt);
  void settle_on(size_t winner);
  void start_over(Nanos now);

  TcpDialRequest request_;
  std::vector<Candidate> state_;
  std::vector<Attempt> attempts_;
  size_t next_candidate_ = 0;
  uint16_t won_ = 0;
  bool settled_ = false;
  std::optional<PeerId> introduced_;
  Nanos next_event_ = 0;  // poll by then even if nothing happens
  Nanos retry_delay_ = retry_first;
};

}  // namespace unisono

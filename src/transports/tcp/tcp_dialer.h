// Makes the connections of one link: tries the peer's addresses one after the other without waiting for each to fail,
// keeps the first that completes a handshake, and opens the other streams to the same address.
//
// When every address has failed it starts over, more and more slowly, until its owner's deadline: a peer may still be
// about to listen. Only answers that cannot change (another version, another job) end an address for good.
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
  TcpHello hello;                      // stream_count set, the rest filled in here
  std::vector<TcpAddress> candidates;  // best first
  std::vector<TcpAddress> sources;     // own addresses to dial from, if an interface was chosen; else empty
  int epoll = -1;                      // told of progress
};

class TcpDialer {
 public:
  // The next address is tried after so long without an answer: longer than a round trip between hosts of one site, short
  // against the patience of a user.
  static constexpr Nanos stagger = 100 * millisecond;
  static constexpr Nanos retry_first = 20 * millisecond;
  static constexpr Nanos retry_last = 500 * millisecond;

  explicit TcpDialer(TcpDialRequest request);
  ~TcpDialer();
  TcpDialer(const TcpDialer&) = delete;
  TcpDialer& operator=(const TcpDialer&) = delete;

  bool step(Nanos now);
  bool complete() const { return won_ == request_.hello.stream_count; }
  // All streams, by index, when complete. They are not watched any more.
  std::vector<Descriptor> take();
  // Of a hello for whoever listens: who that is. The handshake goes on only after go_on().
  std::optional<PeerId> introduced() const { return introduced_; }
  void go_on();
  // No address can ever work.
  bool hopeless() const;
  // At every address nobody listens, or another process does.
  bool turned_away() const;
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
    // A failure is remembered through later tries that have not ended yet: it says more than "no answer".
    std::string error{};
    const char* progress = "not tried yet";
    bool hopeless = false;
    bool turned_away = false;  // by the last try
  };
  enum class Outcome : uint8_t { pending, accepted, failed };

  void start(size_t candidate, uint16_t stream);
  int open_socket(const TcpAddress& address, Descriptor& socket) const;
  Outcome advance(Attempt& attempt);
  Outcome say_hello(Attempt& attempt);
  Outcome hear_reply(Attempt& attempt);
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
  Nanos next_event_ = 0;  // poll me then even if nothing happens
  Nanos retry_delay_ = retry_first;
};

}  // namespace unisono

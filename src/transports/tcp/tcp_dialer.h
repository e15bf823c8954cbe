// Makes the connections of one link. The dialer starts to try the peer's addresses one after the other, but it does not wait
// until one has failed before it tries the next. It keeps the first connection that completes a handshake. If the link has
// several streams, the dialer then opens the others to the same address.
//
// When every address has failed, the dialer starts again after a delay, because the peer may not listen yet. The delay grows
// each time. At a deadline, the owner of the dialer ends it. An address is given up for good only after an answer that cannot
// change (another version, another job).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "net/stream_socket.h"
#include "transports/tcp/tcp_handshake.h"

namespace unisono {

struct TcpDialRequest {
  TcpHello hello;                      // The caller fills in all fields except stream_index and checksum.
  std::vector<TcpAddress> candidates;  // addresses of the peer, best first
  std::vector<TcpAddress> sources;     // local addresses from which to dial; empty: the network chooses one
  StreamNetwork* network = nullptr;    // makes the connections
  StreamWatcher* watcher = nullptr;    // reports the tag 0 for this dialer's sockets
};

class TcpDialer {
 public:
  // If an address has not answered after this time, the next address is tried. The time is longer than a round trip within one
  // site, but short enough for a user who waits.
  static constexpr Nanos stagger = 100 * millisecond;
  static constexpr Nanos retry_first = 20 * millisecond;
  static constexpr Nanos retry_last = 500 * millisecond;

  explicit TcpDialer(TcpDialRequest request);
  TcpDialer(const TcpDialer&) = delete;
  TcpDialer& operator=(const TcpDialer&) = delete;

  bool step(Nanos now);
  bool complete() const { return accepted_count_ == request_.hello.stream_count; }
  // Returns the sockets of all streams, indexed by stream. Call this only if complete() is true. The watcher watches
  // them no longer.
  std::vector<std::unique_ptr<StreamSocket>> take();
  // If the hello is for any process, this returns the id of the process that has answered. The handshake then waits until the
  // owner accepts this process by calling accept_peer().
  std::optional<PeerId> introduced() const { return introduced_; }
  void accept_peer();
  // Returns true if no address can ever work.
  bool hopeless() const;
  // Returns true if every address has refused. An address refuses if nobody listens there, or if another process listens there.
  bool refused_everywhere() const;
  // Returns true if a connection could not be made because no descriptor was free in this process. failures() names the limit.
  bool exhausted() const { return exhausted_; }
  // Returns every address with its error, like "10.0.0.1:4: connection refused; [::1]:4: no answer".
  std::string failures() const;
  Nanos next_deadline() const { return next_event_; }

 private:
  enum class Phase : uint8_t { connecting, replying, introduced, accepted };
  struct Attempt {
    size_t candidate = 0;
    uint16_t stream = 0;
    Phase phase = Phase::connecting;
    std::unique_ptr<StreamSocket> socket;  // nullptr: it could not be made
    TcpIntroduction answer;
    size_t answer_bytes = 0;
  };
  struct Candidate {
    // The error of the last attempt that failed. A new attempt does not clear it, because the error says more than "no answer".
    std::string error{};
    const char* progress = "not tried yet";
    bool hopeless = false;
    bool refused_everywhere = false;  // true: the last attempt was refused
  };
  enum class Outcome : uint8_t { pending, accepted, failed };

  void start(size_t candidate, uint16_t stream);
  Outcome advance(Attempt& attempt);
  Outcome send_hello(Attempt& attempt);
  Outcome read_reply(Attempt& attempt);
  Outcome introduced(Attempt& attempt);
  Outcome failed(const Attempt& attempt, std::string why);
  Outcome failed(const Attempt& attempt, int error);
  void choose_attempt(size_t winner);
  void start_over(Nanos now);

  TcpDialRequest request_;
  std::vector<Candidate> state_;
  std::vector<Attempt> attempts_;
  size_t next_candidate_ = 0;
  uint16_t accepted_count_ = 0;
  bool address_chosen_ = false;
  bool exhausted_ = false;
  std::optional<PeerId> introduced_;
  Nanos next_event_ = 0;  // At this time step() must be called even if no socket is ready.
  Nanos retry_delay_ = retry_first;
};

}  // namespace unisono

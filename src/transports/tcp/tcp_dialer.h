// Makes the connections of one link, or makes one of its streams' connections anew. The dialer starts to try the peer's
// addresses one after the other, but it does not wait until one has failed before it tries the next. It keeps the first
// connection that completes a handshake. If a link has several streams, the dialer then opens the others to the same address.
//
// When every address has failed, the dialer starts again after a delay, because the peer may not listen yet. The delay grows
// each time. At a deadline, the owner of the dialer ends it. An address is given up for good only after an answer that cannot
// change (another version, another job, another key). Altered bytes look like another key, so several answers must say that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "net/socket_address.h"
#include "net/stream_socket.h"
#include "tls/tls_context.h"
#include "transports/tcp/tcp_greeting.h"

namespace unisono {

struct TcpDialRequest {
  TcpSessionHello hello;                    // The caller fills in session, count, key, from, to, port and resumes.
  std::vector<TcpWireAddress> addresses{};  // where this process can be reached
  std::vector<TcpAddress> candidates{};     // addresses of the peer, best first
  std::vector<TcpAddress> sources{};        // local addresses from which to dial; empty: the network chooses one
  StreamNetwork* network = nullptr;         // makes the connections
  StreamWatcher* watcher = nullptr;         // reports the tag 0 for this dialer's sockets
  std::shared_ptr<const TlsContext> tls{};  // null: the connections are neither encrypted nor authenticated
  std::optional<uint16_t> only_stream{};    // the stream whose connection is made anew; none: all streams of a new link
  uint32_t attempts_before = 0;             // hellos that this process has sent for this stream, for TcpSessionHello::attempt
  bool key_may_differ = false;  // nothing else has shown yet that the peer has the same key, or none, as this process
  bool only_asks = false;       // with only_stream: makes no connection, and only asks whether the peer is there
};

// A connection whose hello was accepted.
struct TcpDialled {
  std::unique_ptr<StreamSocket> socket;
  TcpSessionReply reply;
};

class TcpDialer {
 public:
  // If an address has not answered after this time, the next address is tried. The time is longer than a round trip within one
  // site, but short enough for a user who waits.
  static constexpr Nanos stagger = 100 * millisecond;
  static constexpr Nanos retry_first = 20 * millisecond;
  static constexpr Nanos retry_last = 500 * millisecond;
  // With TcpDialRequest::key_may_differ: after so many failed authentications in a row, the process there has another key.
  static constexpr uint32_t key_failures_max = 3;
  // A new link's hello that has no reply after this time is sent again on another connection. The peer may let it wait longer,
  // until it knows this process; or the reply was lost together with its connection.
  static constexpr Nanos reply_timeout = 3 * second;

  explicit TcpDialer(TcpDialRequest request);
  TcpDialer(const TcpDialer&) = delete;
  TcpDialer& operator=(const TcpDialer&) = delete;

  bool step(Nanos now);
  bool complete() const { return accepted_count_ == expected(); }
  // Returns the connections of all streams, in their order. Call this only if complete() is true. The
  // watcher watches them no longer.
  std::vector<TcpDialled> take();
  // If the hello is for any process, this returns the id of the process that has answered. The handshake then waits until the
  // owner accepts this process by calling accept_peer().
  std::optional<PeerId> introduced() const { return introduced_; }
  void accept_peer();
  // Returns true if no address can ever work.
  bool hopeless() const;
  // Returns true if there is an address, and every address has refused. An address refuses if nobody listens there, or if
  // another process listens there.
  bool refused_everywhere() const;
  // Returns true if a connection could not be made because no descriptor was free in this process. failures() names the limit.
  bool exhausted() const { return exhausted_; }
  // Returns every address with its error, like "10.0.0.1:4: connection refused; [::1]:4: no answer".
  std::string failures() const;
  Nanos next_deadline() const;

  // For the connection of one stream, which is tried once: returns true if every address has failed.
  bool failed() const { return request_.only_stream && attempts_.empty() && next_candidate_ == state_.size() && !complete(); }
  // Returns true once a hello was sent.
  bool greeted() const { return greeted_; }
  // Returns true, but only once, if the peer says that it still reads the former connection, so that its reply takes longer.
  bool take_peer_drains() { return std::exchange(peer_drains_, false); }
  // The peer's answer that ends the dial: it has given up the link (no_session), has read our last frame (left), or was only
  // asked (stale). answered_at() then says where.
  const std::optional<TcpSessionReply>& final_answer() const { return final_answer_; }
  // The largest TcpSessionReply::attempt: the peer's hellos up to this number are stale.
  uint32_t peer_attempts() const { return peer_attempts_; }
  // The number of the last round of dials, as TcpSessionHello::attempt.
  uint32_t attempts() const { return round_; }
  // Returns true if an address has taken a connection, whatever came of it.
  bool answered() const { return answered_at_.has_value(); }
  const std::optional<TcpAddress>& answered_at() const { return answered_at_; }
  // Returns true if this function returns true for the address of an attempt that was refused.
  bool refused_at(const std::function<bool(const TcpAddress& address)>& matters) const;

 private:
  enum class Phase : uint8_t { connecting, replying, introduced, accepted };
  struct Attempt {
    size_t candidate = 0;
    uint16_t stream = 0;
    Phase phase = Phase::connecting;
    bool preamble_sent = false;
    std::unique_ptr<StreamSocket> socket;
    StreamSocket* clear = nullptr;  // while the TLS handshake goes on: the socket behind it, which `socket` owns
    TcpSessionReply reply;
    size_t reply_bytes = 0;
    Nanos hello_at = 0;
  };
  struct Candidate {
    // The error of the last attempt that failed. A new attempt does not clear it, because the error says more than "no answer".
    std::string error{};
    const char* progress = "not tried yet";
    bool hopeless = false;
    uint32_t key_failures = 0;        // failed authentications since the last other answer
    bool refused_everywhere = false;  // true: the last attempt was refused
    bool nobody_listens = false;      // true: it was refused by the host, not by another process
  };
  enum class Outcome : uint8_t { pending, accepted, failed };

  // The owner limits the time of the connection of one stream.
  bool is_late(const Attempt& attempt, Nanos now) const {
    return !request_.only_stream && now - attempt.hello_at >= reply_timeout;
  }
  size_t expected() const { return request_.only_stream ? 1 : request_.hello.stream_count; }
  void start(size_t candidate, uint16_t stream);
  Outcome advance(Attempt& attempt, Nanos now);
  Outcome secure(Attempt& attempt);
  std::optional<Outcome> answer_in_clear(Attempt& attempt);
  Outcome send_hello(Attempt& attempt);
  Outcome read_reply(Attempt& attempt);
  Outcome answer_of(Attempt& attempt);
  Outcome introduced(Attempt& attempt, const PeerId& id);
  Outcome failed(const Attempt& attempt, std::string why);
  Outcome failed(const Attempt& attempt, int error);
  Outcome failed_by_key(const Attempt& attempt, std::string why);
  void choose_attempt(size_t winner);
  void start_over(Nanos now);

  TcpDialRequest request_;
  std::vector<Candidate> state_;
  std::vector<Attempt> attempts_;
  size_t next_candidate_ = 0;
  size_t accepted_count_ = 0;
  uint32_t round_ = 0;
  uint32_t peer_attempts_ = 0;
  bool address_chosen_ = false, exhausted_ = false, greeted_ = false, peer_drains_ = false;
  std::optional<TcpAddress> answered_at_;
  std::optional<PeerId> introduced_;
  std::optional<TcpSessionReply> final_answer_;
  Nanos next_event_ = 0;  // At this time step() must be called even if no socket is ready.
  Nanos retry_delay_ = retry_first;
  Nanos stepped_at_ = 0;
};

}  // namespace unisono

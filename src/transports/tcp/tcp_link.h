// One link to a peer. It holds the streams of the link, chooses a stream for each frame, and keeps the link's state.
//
// A link is connecting until all its streams have had a connection. Then it is up, and in the end it is lost. While it is up,
// its streams may lose their connections and get new ones: the link reconnects, and nobody above it notices. What ends it is
// judged by tcp_verdict.h. read() makes the upcalls received, sent and receive_buffer. The link collects all other events, and
// the transport reports them in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/connector.h"
#include "transports/tcp/resend_memory.h"
#include "transports/tcp/tcp_dialer.h"
#include "transports/tcp/tcp_listener.h"
#include "transports/tcp/tcp_stream.h"
#include "transports/tcp/tcp_verdict.h"
#include "transports/transport.h"

namespace unisono {

struct TcpLinkOptions {
  // At most this many frames with payload may be queued. credit() returns how many more may be. A longer queue would only add
  // delay: 64 frames of 256 KiB are up to four times as much as the kernel's buffers hold.
  size_t queue_frames_max = 64;
  // This many frames may be queued beyond queue_frames_max, because frames without payload need no credit. The number is large
  // enough for thousands of operations, each of which queues a `credit` or `failed` frame. If there are still more frames, the
  // link is lost.
  size_t extra_frames_max = 4096;
  // A link is lost if it cannot be connected again for this long, or if the peer's host acknowledges nothing for this long.
  Nanos link_timeout = 10 * second;
  // At most this many bytes are copied per link so that they can be sent again. If there are more, sends wait until the peer
  // has confirmed them.
  size_t resend_memory = ResendMemory::link_bytes_max;
};

// A connection of a stream that is being made anew.
struct TcpRedial {
  std::unique_ptr<TcpDialer> dialer{};
  bool greeted = false;              // the session knows that a hello was sent
  std::optional<TcpDialled> made{};  // the accepted connection, while the former one is still being read
};

class TcpLink {
 public:
  // `process`: the memory for copies that all links of the process share. It must live longer.
  TcpLink(LinkRequest request, PayloadPool& pool, ResendMemory& process, const TcpLinkOptions& options);
  ~TcpLink();

  const LinkRequest& request() const { return request_; }
  LinkState state() const { return state_; }

  // Making the link ------------------------------------------------------------------------------------------------
  std::unique_ptr<TcpDialer> dialer;  // the dialling side has a dialer until the link is up
  // Sets the random number of this link, and this process's id. Call it before any connection is made.
  void set_session(uint64_t number, const PeerId& self);
  uint64_t session_number() const { return streams_.empty() ? session_.number : streams_[0]->session().number(); }
  uint16_t stream_count() const { return static_cast<uint16_t>(streams_.size()); }
  // Makes the streams, if there are none.
  void make_streams(uint16_t count);
  TcpStream& stream(uint16_t index) { return *streams_[index]; }
  const TcpStream& stream(uint16_t index) const { return *streams_[index]; }
  // Takes over the connections of all streams that this process has dialled. The link is up. A stream whose connection has
  // broken meanwhile is connected again like any other.
  void dialled(std::vector<TcpDialled> connections, uint32_t attempts, StreamWatcher& watcher, Nanos now,
               std::vector<uint64_t>& sent);
  // Takes over an accepted connection. The link is up when all streams have one. Returns false if it cannot be used.
  bool accepted(const TcpInbound& inbound, std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, Nanos now);
  // Call this after a dial without an id. It sets the peer's id to the id of the process that has answered.
  void identify_peer(const PeerId& id);
  // Ends this process's dial, because the peer's connection is used instead.
  void withdraw_dial();

  // Using the link --------------------------------------------------------------------------------------------------
  size_t credit();
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  bool release_acknowledged(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  void release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  void cancel(const Cancellation& what);
  bool wants_flush(Nanos now) const;
  bool flush(Nanos now, std::vector<uint64_t>& sent);
  bool read(uint16_t stream, Nanos now, Sink& sink);
  bool read_all(Nanos now, Sink& sink);
  size_t queued_frames() const;
  // If credit() has returned 0, this returns true once as soon as there is credit again.
  bool take_credit_returned();
  bool credit_returned() const {
    return credit_refused_ && state_ == LinkState::up && queued_frames() < options_.queue_frames_max;
  }
  bool wants_poll() const;
  void update_interest();

  // Reconnecting ----------------------------------------------------------------------------------------------------
  // From time to time, asks the network whether the peer's host has stopped answering. Most calls do nothing.
  void look_for_silence(Nanos now);
  // Returns true if frames are not written yet, or if a connection is being made anew.
  bool is_draining() const;
  // Returns true if either side has not confirmed all frames of the other.
  bool awaits_confirmations() const;
  // Returns true if keep_up() has nothing to do. Most calls of poll() end here.
  bool is_calm(Nanos now) const { return calm_ && !care_soon_ && now < care_at_; }
  // Something has happened, after which is_calm() must look at the streams again.
  void disturb() { calm_ = false; }
  bool needs_care();
  // Read and flush before. Closes connections that have ended, and says what follows. With `outage`, the link goes on.
  TcpVerdict keep_up(Nanos now, Sink& sink);
  bool redial_is_due(uint16_t stream, Nanos now) const;  // the stream must be dialled now
  void begin_redial(uint16_t stream, std::unique_ptr<TcpDialer> dialer, Nanos now);
  // Steps the dial of a stream, and takes over what it has made. Returns true if anything happened.
  bool step_redial(uint16_t stream, StreamWatcher& watcher, Nanos now, Sink& sink, std::vector<uint64_t>& sent);
  // Decides about a hello for a stream of this link, which came `waited` ago.
  TcpAcceptor::Decision decide(const TcpSessionHello& hello, Nanos waited, Nanos now, Sink& sink);
  // The addresses at which the peer may be reached now, best first.
  std::vector<TcpAddress> last_addresses() const;
  // Returns what was reconnected since the last call, like "after 0.3 s: connection reset by peer". Empty: nothing.
  std::string take_reconnected() { return std::exchange(reconnected_, {}); }
  bool has_reconnected() const { return !reconnected_.empty(); }
  uint64_t reconnections() const { return reconnections_; }
  bool reconnecting() const;                 // any stream is without a connection
  bool is_host_silent(Nanos silence) const;  // see Connector
  // Returns true once after a connection has ended.
  bool take_end() { return std::exchange(has_ended_, false); }
  // Takes over what an older, lost link to the same peer knew of the peer's addresses.
  void inherit(const TcpLink& old);
  // Returns true if the first dials were refused where a refusal means that the process is gone.
  bool is_refused_for_good() const;
  // Returns true if no refusal would prove that the peer's process is gone, and note_answer() would change that.
  bool wants_dial_back() const { return state_ == LinkState::up && !answered_at_ && !on_this_host(); }
  void note_answer(const TcpAddress& address) { answered_at_ = address; }
  bool leaves() const { return moved_at_ != never; }
  bool on_this_host() const { return local_.bytes > 0 && local_.same_host(remote_); }

  // Ending the link -------------------------------------------------------------------------------------------------
  // Returns why the link ended. The text contains the streams' errors and the traffic counts.
  Status end_status(TcpVerdict verdict) const;
  // At this time the link must be checked even if nothing arrives.
  Nanos next_deadline() const;
  // Ends all traffic, closes the sockets, and appends the ids of pending sends to `sent`.
  void lose(const Status& why, PeerFate fate, std::vector<uint64_t>& sent);
  // Call this once while the link is up, instead of lose(). Appends the ids of pending sends to `sent`: their payloads are not
  // read any more. A payload that was begun is copied, others are dropped. Then each stream sends its last frame. What arrives
  // is discarded without an upcall, but the link goes on, also over new connections, until the peer has everything:
  // leaving_state() says when. The watcher then reports tag_base << 16 | stream for its streams.
  void leave(uint64_t tag_base, Nanos now, std::vector<uint64_t>& sent);
  enum class Leaving : uint8_t {
    goes_on,   // the peer has not confirmed everything
    in_order,  // the peer has everything that it needs, and so has this side
    in_vain,   // the peer's host takes or confirms nothing for too long
  };
  Leaving leaving_state(Nanos now);
  // Returns true if the peer may miss something if this process ends now.
  bool may_be_missed() const;
  // Discards what has arrived on a link that ends with its process, so that closing its sockets resets no connection.
  void discard_arrived(Nanos now, Sink& sink);
  // Returns the status for Sink::lost, but only once.
  std::optional<Status> take_lost_status();
  bool has_lost_status() const { return lost_.has_value(); }
  // If the link is lost: what is known about the peer's process.
  PeerFate fate() const { return fate_; }

  const TcpTraffic& traffic() const { return traffic_; }
  FrameFault fault() const;
  const std::string& describe() const { return description_; }
  // See Transport::link_state.
  std::string link_state(Nanos now) const;
  // Adds the name of the network interface (like "eth0") to the description of the link.
  void name_interface(const std::string& interface);
  TcpAddress local() const { return local_; }
  TcpAddress remote() const { return remote_; }

 private:
  struct Line {  // what is known of a stream's connections
    TcpEnd end = TcpEnd::none;
    std::string end_text{};
    Nanos refused_since = never;    // all dials since then were refused
    bool refused_for_good = false;  // a dial was refused where a refusal means that the process is gone
    Nanos silent_since = never;     // the peer's host acknowledges nothing on the present connection
    bool no_session = false;
    bool left_confirmed = false;  // a `left` was sent or received
    Nanos down_since = 0;
    Nanos answered_at = 0;      // the peer lives, but one of the two cannot read its old connection to the end yet
    std::string dial_text{};    // what the last dial has found at each address
    uint32_t retiring_for = 0;  // the attempt of the hello that was accepted while the old connection is still being read
    Nanos retiring_at = 0;
  };
  struct Stall {  // a stream whose bytes got no acknowledgement, although other connections to the peer can be made
    std::string text{};
    uint64_t confirmed = 0;  // up to here the peer had confirmed
  };
  TcpStream& stream_for(size_t payload_bytes);
  void note_connected(uint16_t stream, const StreamSocket& socket);
  bool adopt(uint16_t stream, TcpDialled made, StreamWatcher& watcher, Nanos now, std::vector<uint64_t>& sent);
  void note_end(uint16_t stream, TcpEnd end, std::string text, Nanos now);
  void note_stall(uint16_t stream);
  void note_reconnected(uint16_t stream, Nanos now);
  void step_session(uint16_t stream, Nanos now);
  void keep_up_stream(uint16_t stream, Nanos now, Sink& sink);
  bool needs_peer(uint16_t stream, Nanos now) const;
  TcpAcceptor::Decision take_over(uint16_t stream, Nanos waited, Nanos now, Sink& sink);
  bool finish_redial(uint16_t stream, StreamWatcher& watcher, Nanos now, Sink& sink, std::vector<uint64_t>& sent);
  void end_redial(uint16_t stream);
  Nanos may_redial_at(uint16_t stream) const;
  void mark_up_if_complete();
  bool refusal_counts(const TcpAddress& address) const;
  bool refusal_proves_end(const Line& line) const { return line.refused_for_good || answered_at_ || on_this_host(); }
  bool waits_in_circle(uint16_t stream) const;
  TcpVerdict judge_stream(uint16_t stream, Nanos now) const;

  LinkRequest request_;
  PayloadPool& pool_;
  TcpLinkOptions options_;
  TcpSessionOptions session_;
  PeerId self_{};
  ResendMemory resend_memory_;
  TcpTraffic traffic_;
  std::vector<std::unique_ptr<TcpStream>> streams_;
  std::vector<TcpRedial> redials_;          // indexed like streams_
  std::vector<Line> lines_;                 // indexed like streams_
  std::vector<Stall> stalls_;               // indexed like streams_
  std::vector<TcpAddress> told_addresses_;  // where the peer said that it can be reached
  LinkState state_ = LinkState::connecting;
  TcpAddress local_, remote_;
  std::string description_ = "tcp, not connected";
  std::string interface_text_;
  std::optional<Status> lost_;
  PeerFate fate_ = PeerFate::unknown;
  std::string reconnected_;
  uint64_t reconnections_ = 0;
  uint64_t tag_base_;
  // For a link that leaves: when something moved last, when that was looked at last, and what it looked like.
  Nanos moved_at_ = never, moved_looked_at_ = 0;
  uint64_t confirmed_bytes_ = 0, unwritten_bytes_ = UINT64_MAX;
  size_t next_stream_ = 0;  // the stream on which the next large frame is sent
  // credit() has returned 0. Initially this is true, because a link that is still connecting has no credit.
  bool credit_refused_ = true;
  bool overflowed_ = false;
  bool calm_ = false;       // nothing has happened since needs_care() returned false
  bool care_soon_ = false;  // frames were sent although care_at_ was never
  bool silent_ = false;
  bool has_ended_ = false;
  std::optional<TcpAddress> answered_at_;  // where a dial of this process was answered last
  Nanos care_at_ = never;                  // keep_up() must look at this time for silence
};

}  // namespace unisono

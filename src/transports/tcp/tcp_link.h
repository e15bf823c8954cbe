// One link to a peer. It holds the streams of the link, chooses a stream for each frame, and keeps the link's state.
//
// A link is connecting until all its streams are attached. Then it is up, and in the end it is lost. read() makes the upcalls
// received and receive_buffer. The link collects all other events, and the transport reports them in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transports/connector.h"
#include "transports/tcp/tcp_dialer.h"
#include "transports/tcp/tcp_drain.h"
#include "transports/tcp/tcp_stream.h"
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
  // A host that acknowledges nothing for this long counts as dead.
  Nanos silence = 30 * second;
};

class TcpLink {
 public:
  TcpLink(LinkRequest request, PayloadPool& pool, const TcpLinkOptions& options);
  ~TcpLink();

  const LinkRequest& request() const { return request_; }
  LinkState state() const { return state_; }

  // Making the link ------------------------------------------------------------------------------------------------
  std::unique_ptr<TcpDialer> dialer;  // the dialling side has a dialer until the link is up
  uint16_t stream_count() const { return static_cast<uint16_t>(streams_.size()); }
  bool attached(uint16_t stream) const { return stream < streams_.size() && streams_[stream]->attached(); }
  // Adds a connection as stream number `stream` of `count` streams. The first call fixes the count. The link is up when all
  // streams are attached. Returns false if `watcher` cannot watch the socket.
  bool attach(uint16_t stream, uint16_t count, std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher);
  // For the listening side of a link that is still connecting: returns true if a stream has ended. In this case the dialler
  // will start over, so the owner must call start_again(), which drops all streams.
  bool broken_while_connecting() const;
  void start_again();
  // Call this after a dial without an id. It sets the peer's id to the id of the process that has answered.
  void identify_peer(const PeerId& id) { request_.id = id; }
  // Ends this process's dial, because the peer's connection is used instead.
  void withdraw_dial();

  // Using the link --------------------------------------------------------------------------------------------------
  size_t credit();
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  void cancel(const Cancellation& what);
  bool flush(std::vector<uint64_t>& sent);
  bool read(uint16_t stream, Sink& sink);
  bool read_all(Sink& sink);
  size_t queued_frames() const;
  // If credit() has returned 0, this returns true once as soon as there is credit again.
  bool take_credit_returned();
  bool credit_returned() const {
    return credit_refused_ && state_ == LinkState::up && queued_frames() < options_.queue_frames_max;
  }
  bool wants_poll() const;
  void update_interest();

  // Ending the link ------------------------------------------------------------------------------------------------- When one
  // stream has ended in order, the link waits this long, because earlier frames may still arrive on the other streams.
  static constexpr Nanos end_timeout = 50 * millisecond;
  // Returns true if the link has ended, which follows from the state of its streams. Call this after reading and flushing.
  bool has_ended(Nanos now);
  // Returns why the link ended. The text contains the streams' errors and the traffic counts.
  Status end_status() const;
  // If a check is due, asks the kernel whether the peer's host has stopped answering. Checks are rare, so most calls do
  // nothing.
  void look_for_silence(Nanos now);
  // At this time the link must be checked even if nothing arrives.
  Nanos next_deadline() const { return silence_check_ < end_deadline_ ? silence_check_ : end_deadline_; }
  void schedule_silence_check(Nanos now);
  // lose() and close() end all traffic, and append the ids of pending sends to `sent`. lose() closes the sockets. close() moves
  // the sockets to `drains`, which end the connections normally. memory_valid says whether the payloads of pending sends can
  // still be read.
  void lose(const Status& why, std::vector<uint64_t>& sent);
  void close(bool memory_valid, std::vector<uint64_t>& sent, std::vector<TcpDrain>& drains);
  // Returns the status for Sink::lost, but only once.
  std::optional<Status> take_lost_status();
  bool has_lost_status() const { return lost_.has_value(); }

  const TcpTraffic& traffic() const { return traffic_; }
  FrameFault fault() const;
  const std::string& describe() const { return description_; }
  // See Transport::trouble.
  std::string trouble() const;
  // Adds the name of the network interface (like "eth0") to the description of the link.
  void name_interface(const std::string& interface);
  TcpAddress local() const { return local_; }
  TcpAddress remote() const { return remote_; }

 private:
  TcpStream& stream_for(size_t payload_bytes);

  LinkRequest request_;
  PayloadPool& pool_;
  TcpLinkOptions options_;
  TcpTraffic traffic_;
  std::vector<std::unique_ptr<TcpStream>> streams_;
  LinkState state_ = LinkState::connecting;
  TcpAddress local_, remote_;
  std::string description_ = "tcp, not connected";
  std::optional<Status> lost_;
  size_t next_stream_ = 0;  // the stream on which the next large frame is sent
  // credit() has returned 0. Initially this is true, because a link that is still connecting has no credit.
  bool credit_refused_ = true;
  bool overflowed_ = false;
  bool silent_ = false;
  Nanos silence_check_ = never;
  Nanos end_deadline_ = never;
  // The value that sent_bytes had when a check last found that all bytes were acknowledged. Initially there was no check, and
  // the bytes of the handshake may be unacknowledged.
  uint64_t checked_bytes_ = UINT64_MAX;
};

}  // namespace unisono

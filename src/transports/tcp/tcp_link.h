// One link to a peer: its streams, the choice of a stream for each frame, and the link's life.
//
// A link is connecting until all its streams are attached, then up, then lost. Its only upcalls are received and place (from
// read). It collects everything else for the transport, which reports it in order.
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
  // Frames with payload that wait for the kernel; credit() counts down from it. 64 frames of 256 KiB are four times the
  // kernel's own buffers at most, so a longer queue would only add delay.
  size_t queue_frames_max = 64;
  // Frames that are accepted beyond it (frames without payload always are): enough for one credit or verdict for each of
  // thousands of operations. A peer for which more pile up is lost.
  size_t extra_frames_max = 4096;
  // A host that answers nothing for this long, although asked, counts as dead.
  Nanos silence = 30 * second;
};

class TcpLink {
 public:
  TcpLink(LinkRequest request, PayloadPool& pool, const TcpLinkOptions& options);
  ~TcpLink();

  const LinkRequest& request() const { return request_; }
  LinkState state() const { return state_; }

  // Making the link ------------------------------------------------------------------------------------------------
  std::unique_ptr<TcpDialer> dialer;  // on the dialling side, until the link is up
  uint16_t stream_count() const { return static_cast<uint16_t>(streams_.size()); }
  bool attached(uint16_t stream) const { return stream < streams_.size() && streams_[stream]->attached(); }
  // The first stream decides how many there are. The link is up when the last one is attached.
  bool attach(uint16_t stream, uint16_t count, Descriptor socket, int epoll);
  // For the listening side while connecting: a stream of the dialler has ended, so the dialler will start again from nothing.
  bool broken_while_connecting() const;
  void start_again();
  // The id of the process that answered a dial without an id.
  void identify_peer(const PeerId& id) { request_.id = id; }
  // Withdraws our dial in favour of the peer's.
  void yield();

  // Using the link --------------------------------------------------------------------------------------------------
  size_t credit();
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation);
  bool flush(std::vector<uint64_t>& sent);
  bool read(uint16_t stream, Sink& sink);
  bool read_all(Sink& sink);
  size_t queued_frames() const;
  // Returns true once after credit() was 0 and is not any more.
  bool take_credit_returned();
  bool credit_returned() const {
    return credit_refused_ && state_ == LinkState::up && queued_frames() < options_.queue_frames_max;
  }
  bool wants_poll() const;
  void update_interest();

  // Ending the link -------------------------------------------------------------------------------------------------
  // After an orderly end of one stream, the others may still bring frames sent before; the link waits this long for them.
  static constexpr Nanos end_patience = 50 * millisecond;
  // Decides from the streams whether the link has ended. Call it after reading and flushing.
  bool has_ended(Nanos now);
  // Why the link ended, with what the streams know.
  Status end_status() const;
  // Checks whether the peer's host is dead; cheap because it does so rarely.
  void look_for_silence(Nanos now);
  // When the link must be checked even if nothing arrives.
  Nanos next_deadline() const { return silence_check_ < end_deadline_ ? silence_check_ : end_deadline_; }
  void schedule_silence_check(Nanos now);
  // Ends all traffic. lose() closes the sockets; close() hands them to `slow` for an orderly end. memory_valid: whether the
  // memory of pending sends can still be read.
  void lose(const Status& why, std::vector<uint64_t>& sent);
  void close(bool memory_valid, std::vector<uint64_t>& sent, std::vector<TcpDrain>& slow);
  // The status for Sink::lost, once.
  std::optional<Status> take_lost_status();
  bool has_lost_status() const { return lost_.has_value(); }

  const TcpTraffic& traffic() const { return traffic_; }
  FrameFault fault() const;
  const std::string& describe() const { return description_; }
  // The name of the interface for messages, like "eth0".
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
  size_t next_stream_ = 0;      // for the next large frame
  bool credit_refused_ = true;  // no credit while connecting
  bool overflowed_ = false;
  bool silent_ = false;
  Nanos silence_check_ = never;
  Nanos end_deadline_ = never;
  uint64_t checked_bytes_ = 0;  // sent_bytes at the last time when everything was acknowledged
};

}  // namespace unisono

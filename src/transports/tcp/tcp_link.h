// One peer: its streams, which frame goes on which, and how the link came up and ended.
//
// A link is connecting until all its streams are attached, then up, then lost. It makes no upcall except received and
// place (from read); the rest is collected for the transport, which reports it in order.
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
  // Frames with payload that wait for the kernel; credit() counts down from it. 64 frames of 256 KiB are four times what the
  // kernel itself buffers at most, so a longer queue only adds delay.
  size_t queue_frames_max = 64;
  // Frames that are accepted beyond it (those without payload always are): enough for one credit or verdict for each of
  // thousands of operations. A peer that lets more pile up is lost.
  size_t extra_frames_max = 4096;
  // Unanswered for so long although asked: the host is dead.
  Nanos silence = 30 * second;
};

class TcpLink {
 public:
  TcpLink(LinkRequest request, PayloadPool& pool, const TcpLinkOptions& options);
  ~TcpLink();

  const LinkRequest& request() const { return request_; }
  LinkState state() const { return state_; }

  // Making it. -----------------------------------------------------------------------------------------------------
  std::unique_ptr<TcpDialer> dialer;  // of the dialling side, until the link is up
  uint16_t stream_count() const { return static_cast<uint16_t>(streams_.size()); }
  bool attached(uint16_t stream) const { return stream < streams_.size() && streams_[stream]->attached(); }
  // The first stream decides how many there are. When the last one is attached, the link is up.
  bool attach(uint16_t stream, uint16_t count, Descriptor socket, int epoll);
  // While connecting on the listening side: the dialler gave up a part of it, and will start again from nothing.
  bool broken_while_connecting() const;
  void start_again();
  // Of a dial without an id: whom it led to.
  void meet(const PeerId& id) { request_.id = id; }
  // Our dial is withdrawn in favour of theirs.
  void yield();

  // Using it. ------------------------------------------------------------------------------------------------------
  size_t credit();
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation);
  bool flush(std::vector<uint64_t>& sent);
  bool read(uint16_t stream, Sink& sink);
  bool read_all(Sink& sink);
  size_t queued_frames() const;
  // True once after credit() was 0 and is not any more.
  bool take_credit_news();
  bool credit_news() const { return credit_refused_ && state_ == LinkState::up && queued_frames() < options_.queue_frames_max; }
  bool wants_poll() const;
  void update_interest();

  // Ending it. -----------------------------------------------------------------------------------------------------
  // After an orderly end of one stream the others may still bring what was sent before; they are waited for so long.
  static constexpr Nanos end_patience = 50 * millisecond;
  // Decides from the streams whether the link has ended. Call after reading and flushing.
  bool has_ended(Nanos now);
  // Why, with what the streams know.
  Status end_status() const;
  // Looks for a dead host; rare.
  void look_for_silence(Nanos now);
  // When it must be looked at even if nothing arrives.
  Nanos next_deadline() const { return silence_check_ < end_deadline_ ? silence_check_ : end_deadline_; }
  void schedule_silence_check(Nanos now);
  // No more traffic. Sockets are closed, or handed to `slow` for an orderly goodbye. memory_valid: of what is being sent.
  void lose(const Status& why, std::vector<uint64_t>& sent);
  void close(bool memory_valid, std::vector<uint64_t>& sent, std::vector<TcpDrain>& slow);
  // The status that Sink::lost is owed, once.
  std::optional<Status> take_lost_news();
  bool lost_news() const { return lost_.has_value(); }

  const TcpTraffic& traffic() const { return traffic_; }
  FrameFault fault() const;
  const std::string& describe() const { return description_; }
  // "eth0", for messages.
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
  size_t next_stream_ = 0;      // of large frames
  bool credit_refused_ = true;  // nothing may be sent while connecting
  bool overflowed_ = false;
  bool silent_ = false;
  Nanos silence_check_ = never;
  Nanos end_deadline_ = never;
  uint64_t checked_bytes_ = 0;  // sent_bytes when all was last known to be acknowledged
};

}  // namespace unisono

// One stream of a link. It outlives its connections: when one breaks, another one goes on at the byte where the receiver
// stopped, so that every frame arrives once and in order.
//
// The stream consists of the present connection (a socket), the session (which connection carries the stream, and what follows
// when it ends), the queue of frames that the peer has not confirmed, and the decoder that turns arriving bytes into frames.
// Each call reads or writes only what the network allows at once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/stream_socket.h"
#include "transports/tcp/tcp_confirm_clock.h"
#include "transports/tcp/tcp_decoder.h"
#include "transports/tcp/tcp_dialer.h"
#include "transports/tcp/tcp_greeting.h"
#include "transports/tcp/tcp_resend_queue.h"
#include "transports/tcp/tcp_session.h"

namespace unisono {

struct TcpTraffic {
  uint64_t sent_frames = 0;
  uint64_t sent_bytes = 0;
  TcpReceiveCounters received;
};

class TcpStream final : private TcpDecoder::Confirmations {
 public:
  // A read() stops after this many bytes, so that one fast peer cannot delay the others.
  static constexpr size_t read_bytes_max = 4u << 20;
  // After this many bytes, the network is asked how many of them the peer's host has acknowledged.
  static constexpr uint64_t sweep_bytes = 1u << 20;

  TcpStream(PeerIndex peer, PayloadPool& pool, ResendMemory& memory, TcpTraffic& traffic, size_t queue_reserve,
            const TcpSessionOptions& session)
      : session_(session),
        traffic_(traffic),
        decoder_(peer, pool, traffic.received, this),
        queue_(pool, memory, queue_reserve) {}

  // Connections --------------------------------------------------------------------------------------------------------
  TcpSession& session() { return session_; }
  const TcpSession& session() const { return session_; }
  // Reads what is left of the present connection, and closes it. Returns false if the decoder has no memory for it: try again
  // later. Afterwards nothing of it is to come, so position() may be said.
  bool drain(Nanos now, Sink& sink);
  // Takes over an accepted connection. The reply has said position(). Nothing is written before the peer has begun. Returns
  // false if `watcher` cannot take the socket.
  bool accept(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct, Nanos now);
  // Takes over a dialled connection, whose reply said that the peer has read up to `position`. Goes on there, and says where
  // the peer is to go on. Returns false if this connection cannot be used. broken() says if none can.
  bool adopt(std::unique_ptr<StreamSocket> socket, uint64_t position, StreamWatcher& watcher, uint64_t tag, bool direct,
             Nanos now, std::vector<uint64_t>& sent);
  // Closes the present connection. The stream can go on with another one.
  void disconnect();
  bool connected() const { return socket_ != nullptr; }
  // Ends the stream, and closes its connection in order. Drops all frames, and appends the ids for which sent(id) must be
  // reported.
  void end(std::vector<uint64_t>& sent);

  // Frames ------------------------------------------------------------------------------------------------------------
  // Queues a frame, and writes as much as the network takes at once. Returns true if the payload's memory is no longer needed.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  // Cancels all sends and appends their ids, for which sent(id) must be reported. Queues the last frame of the stream, and
  // writes as much as the network takes at once. From now on no upcall is made, and the watcher reports `tag`.
  void leave(uint64_t tag, Nanos now, std::vector<uint64_t>& sent);
  // Discards what arrives, without an upcall.
  void discard_all() { decoder_.discard_all(); }
  // Returns true if the peer's host has acknowledged everything, so that the peer can read it even if this process ends now.
  bool host_has_everything() const {
    return can_write() && !has_unwritten() && session_.believes() && socket_->unacknowledged_bytes() == 0;
  }
  // Returns true if flush() has something to do.
  bool wants_flush(Nanos now) const {
    return can_write() && (has_unwritten() || queue_.has_early() || sweep_is_due() || confirm_is_due(now));
  }
  bool flush(Nanos now, std::vector<uint64_t>& sent);
  // Reads until the socket is empty, read_bytes_max is reached, or the connection has ended. Returns true if it has read
  // anything, or if the connection has ended.
  bool read(Nanos now, Sink& sink);
  // See Transport. Both append the ids for which sent(id) must be reported.
  bool release_acknowledged(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  void release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  void cancel_receive(uint32_t group, uint64_t operation) { decoder_.cancel(group, operation); }
  void cancel_sends(uint64_t match, uint64_t mask);

  // Returns true once the peer has sent its last frame.
  bool peer_left() const { return decoder_.left(); }
  // Up to here the stream was read.
  uint64_t position() const { return decoder_.position(); }
  // Returns the time at which the last bytes of an encrypted record came whose rest has not come. `never`: there is none.
  Nanos incomplete_since() const { return incomplete_since_; }
  // Returns true if the connection has ended. What the peer sent is read then.
  bool ended() const { return ended_; }
  // Returns true if the peer closed the connection without an error.
  bool orderly() const { return orderly_; }
  // Returns true if a payload waits for memory, so that the present connection cannot be read to its end.
  bool paused() const { return paused_ && socket_ != nullptr; }
  // Lets the present connection be read to its end although the peer has used up its share of memory. What there is to read is
  // limited by the buffers of the network.
  void exceed_share() { decoder_.exceed_share(true); }
  // Returns true if a payload is half received, and holds a part of the peer's share.
  bool holds_memory() const { return decoder_.holds_memory(); }
  // Returns true if the present connection is known to be broken, but must still be read to its end.
  bool write_broken() const { return socket_ != nullptr && write_error_ != 0; }
  std::string write_error_text() const;
  // Returns true if poll() must handle this stream although the network reports no event.
  bool wants_poll(const PayloadPool& pool, PeerIndex peer) const;
  FrameFault fault() const { return fault_; }
  // An error that no other connection mends: the peer said a position that cannot be right, or bytes are no longer there.
  const Status& broken() const { return broken_; }
  // Returns why the connection ended, like "connection reset by peer".
  std::string end_text() const;
  Nanos next_deadline() const { return can_write() ? confirm_.deadline() : never; }

  const TcpResendQueue& queue() const { return queue_; }
  // Returns true if the peer has not confirmed a frame, or waits for a confirmation: its memory may depend on it.
  bool awaits_confirmations() const { return queue_.has_unconfirmed() || (can_write() && confirm_.deadline() != never); }
  // Returns true if the peer must answer: it has not confirmed a frame, or it was not heard on this connection yet.
  bool awaits_answer() const {
    return queue_.has_unconfirmed() || (session_.stage() == TcpSession::Stage::up && !session_.was_heard());
  }
  // Tells the network which events of this stream must wake a sleeping process.
  void update_interest();
  const StreamSocket& socket() const { return *socket_; }

 private:
  void confirmed(uint32_t low, Sink& sink) override;  // TcpDecoder::Confirmations
  bool attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct);
  void go_on_at(uint64_t position);
  bool can_write() const { return socket_ != nullptr && session_.may_write() && !ended_ && write_error_ == 0; }
  bool has_unwritten() const { return own_begin_left_ > 0 || unflushed_ || queue_.unwritten_frames() > 0; }
  bool write_begin();
  bool write_unflushed();
  bool write_queue();
  bool sweep_is_due() const { return queue_.has_held() && queue_.written() - swept_at_ >= sweep_bytes; }
  bool is_worth_asking() const;
  void ask_network(std::vector<uint64_t>& sent);
  bool confirm_is_due(Nanos now) const { return queue_.wants_confirm() || confirm_.due(decoder_.position(), now); }
  bool take_begin(Nanos now, std::vector<uint64_t>& sent);
  bool read_frames(Sink& sink);
  void acknowledge(size_t bytes);
  void look_at_socket(Nanos now);
  void connection_ended(int error);
  void write_failed(int error);

  TcpSession session_;
  TcpTraffic& traffic_;
  TcpDecoder decoder_;
  TcpResendQueue queue_;
  TcpConfirmClock confirm_;
  std::unique_ptr<StreamSocket> socket_;
  StreamWatcher* watcher_ = nullptr;
  uint64_t tag_ = 0;
  bool direct_ = false;          // see is_direct()
  bool awaits_begin_ = false;    // the connection was accepted, and the peer's TcpBegin is not read yet
  bool paused_ = false;          // the decoder has no memory for a payload
  bool writes_watched_ = false;  // the watcher reports when the socket can be written
  bool encrypts_ = false;        // see StreamSocket::encrypts()
  bool unflushed_ = false;       // see StreamSocket::has_unflushed()
  bool buffered_ = false;        // see StreamSocket::has_buffered()
  bool ended_ = false;
  bool orderly_ = false;  // the peer closed the connection without an error
  bool empty_ = false;    // the last read found the socket empty
  int error_ = 0;
  // The error of a write that failed. The connection does not end at once, because the peer's last frames may still be
  // readable.
  int write_error_ = 0;
  FrameFault fault_ = FrameFault::none;
  Status broken_;
  std::array<std::byte, sizeof(TcpBegin)> begin_{};  // the peer's, as far as it is read
  size_t begin_bytes_ = 0;
  TcpBegin own_begin_;         // written before all frames of a dialled connection
  size_t own_begin_left_ = 0;  // so many of its bytes are still to be written
  uint64_t incomplete_ = 0;    // see StreamSocket::incomplete_record()
  Nanos incomplete_since_ = never;
  uint64_t begun_at_ = 0;                // the position at which this connection began to write
  uint64_t acknowledged_at_ = 0;         // up to here was read when the peer's host was told at once
  uint64_t swept_at_ = 0;                // up to here was written when the network was asked last
  std::vector<uint64_t> confirmed_ids_;  // used by confirmed() and read(); a member so that its memory is used again
};

}  // namespace unisono

// One stream of a link. It outlives its connections: when one breaks, another one goes on at the byte where the receiver
// stopped, so that every frame arrives once and in order.
//
// The stream consists of the present connection (a socket), the queue of frames that the peer has not confirmed, and the
// decoder that turns arriving bytes into frames. Each call reads or writes only what the network allows at once. When a
// connection ends, the stream records why, and the link decides what follows. docs/design/links.md describes the protocol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/stream_socket.h"
#include "transports/tcp/tcp_decoder.h"
#include "transports/tcp/tcp_handshake.h"
#include "transports/tcp/tcp_resend_queue.h"

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
  // If nothing flows back, what was read is confirmed after so many bytes or frames, or this long after the last frame.
  static constexpr uint64_t confirm_bytes = 4u << 20;
  static constexpr uint32_t confirm_frames = 256;
  static constexpr Nanos confirm_delay = 5 * millisecond;
  // After this many bytes, the network is asked how many of them the peer's host has acknowledged.
  static constexpr uint64_t sweep_bytes = 1u << 20;

  TcpStream(PeerIndex peer, PayloadPool& pool, ResendMemory& memory, TcpTraffic& traffic, size_t queue_reserve)
      : traffic_(traffic), decoder_(peer, pool, traffic.received, this), queue_(pool, memory, queue_reserve) {}

  // Connections --------------------------------------------------------------------------------------------------------
  // A connection replaces the present one in these steps. Both sides first call stop_believing() and drain(), until it returns
  // true. Then the accepting side calls accept(), and the dialling side dialled(), which goes on at once.

  // What the peer's host acknowledges is believed no more, because the peer is about to say where it stopped.
  void stop_believing() { believes_ = false; }
  // Reads what is left of the present connection. Returns false if the decoder has no memory for it: try again later.
  bool drain(Sink& sink);
  // Takes over an accepted connection, and drops the present one. The reply has said position(). Nothing is written before the
  // peer has begun. Returns false if `watcher` cannot take the socket.
  bool accept(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct);
  // Takes over a dialled connection, whose reply said that the peer has read up to `position`. Says where this side goes on.
  // Returns an error if the stream cannot go on there, or if this connection has failed (`unavailable`: dial again).
  Status dialled(std::unique_ptr<StreamSocket> socket, uint64_t position, StreamWatcher& watcher, uint64_t tag, bool direct,
                 std::vector<uint64_t>& sent);
  // Closes the present connection. The stream can go on with another one.
  void disconnect();
  bool connected() const { return socket_ != nullptr; }
  // Returns true if this side has accepted the present connection, and the peer has not begun.
  bool awaits_begin() const { return phase_ == Phase::awaiting_begin; }
  // Ends the stream. Drops all frames, and appends the ids for which sent(id) must be reported. Returns the socket, which can
  // be used for a TcpDrain.
  std::unique_ptr<StreamSocket> detach(std::vector<uint64_t>& sent);

  // Frames ------------------------------------------------------------------------------------------------------------
  // Queues a frame, and writes as much as the network takes at once. Returns true if the payload's memory is no longer needed.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  // Queues the last frame of the stream, and writes as much as the network takes at once.
  void leave();
  // Returns true if flush() has something to do.
  bool wants_flush(Nanos now) const;
  bool flush(Nanos now, std::vector<uint64_t>& sent);
  // Reads until the socket is empty, read_bytes_max is reached, or the connection has ended. Returns true if it has read
  // anything, or if the connection has ended.
  bool read(Nanos now, Sink& sink);
  void release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent);
  void cancel_receive(uint32_t group, uint64_t operation) { decoder_.cancel(group, operation); }
  void cancel_sends(uint64_t match, uint64_t mask);

  uint64_t position() const { return decoder_.position(); }
  // Returns true once the peer has sent its last frame.
  bool peer_left() const { return decoder_.left(); }
  // Returns true if the connection has ended. What the peer sent is read then.
  bool ended() const { return ended_; }
  // Returns true if the peer closed the connection without an error.
  bool orderly() const { return orderly_; }
  // Returns true if nothing can be read now.
  bool quiet() const { return ended_ || drained_; }
  // Returns true if poll() must handle this stream although the network reports no event.
  bool wants_poll(const PayloadPool& pool, PeerIndex peer) const;
  FrameFault fault() const { return fault_; }
  // An error that no other connection mends: the peer says a position that cannot be right, or bytes are no longer there.
  const Status& broken() const { return broken_; }
  // Returns why the connection ended, like "connection reset by peer".
  std::string end_text() const;
  Nanos next_deadline() const { return confirm_at_; }

  const TcpResendQueue& queue() const { return queue_; }
  // Tells the network which events of this stream must wake a sleeping process.
  void update_interest();
  const StreamSocket& socket() const { return *socket_; }

 private:
  enum class Phase : uint8_t { none, awaiting_begin, running };

  void confirmed(uint32_t low, Sink& sink) override;  // TcpDecoder::Confirmations
  bool attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag, bool direct, Phase phase);
  bool can_write() const;
  bool write_queue();
  bool confirm_is_due(Nanos now) const;
  void note_told();
  bool read_frames(Sink& sink);
  void end(int error);
  void write_failed(int error);
  bool take_begin(Sink& sink);
  void ask_network(std::vector<uint64_t>& sent);
  void note_received(Nanos now);

  TcpTraffic& traffic_;
  TcpDecoder decoder_;
  TcpResendQueue queue_;
  std::unique_ptr<StreamSocket> socket_;
  StreamWatcher* watcher_ = nullptr;
  uint64_t tag_ = 0;
  Phase phase_ = Phase::none;
  bool direct_ = false;    // both sides see the same two addresses, so nothing between them acknowledges bytes
  bool believes_ = false;  // what the peer's host acknowledges is believed, if the peer was heard
  bool heard_ = false;     // a frame, or the peer's beginning, was read on this connection
  bool paused_ = false;    // the decoder has no memory for a payload
  bool drained_ = false;   // the last read found the socket empty
  bool ended_ = false;
  bool writes_watched_ = false;  // the watcher reports when the socket can be written
  bool orderly_ = false;         // the peer closed the connection without an error
  int error_ = 0;
  // The error of a write that failed. The connection does not end at once, because the peer's last frames may still be
  // readable.
  int write_error_ = 0;
  FrameFault fault_ = FrameFault::none;
  Status broken_;
  std::array<std::byte, sizeof(TcpBegin)> begin_{};
  size_t begin_bytes_ = 0;
  uint64_t begun_at_ = 0;  // the position at which this connection began to write
  uint64_t swept_at_ = 0;  // the position up to which was written when the network was asked last
  uint64_t told_ = 0;      // the position that was confirmed last
  uint32_t frames_untold_ = 0;
  bool confirm_now_ = false;
  Nanos confirm_at_ = never;
  Nanos last_read_ = 0;                  // time of the last read()
  std::vector<uint64_t> confirmed_ids_;  // used by confirmed() only; it is a member so that its memory is used again
};

}  // namespace unisono

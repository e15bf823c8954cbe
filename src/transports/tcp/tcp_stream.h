// One connection of a link after its handshake. It consists of a socket, the queue of frames to send, and the decoder that
// turns arriving bytes into frames.
//
// Each call reads or writes only what the kernel allows at once. When the connection ends, the stream records why, and the link
// reports the reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "net/stream_socket.h"
#include "transports/tcp/tcp_decoder.h"
#include "transports/tcp/tcp_send_queue.h"

namespace unisono {

struct TcpTraffic {
  uint64_t sent_frames = 0;
  uint64_t sent_bytes = 0;
  TcpReceiveCounters received;
};

class TcpStream {
 public:
  // A read() stops after this many bytes, so that one fast peer cannot delay the others.
  static constexpr size_t read_bytes_max = 4u << 20;

  TcpStream(PeerIndex peer, PayloadPool& pool, TcpTraffic& traffic, size_t queue_reserve)
      : traffic_(traffic), decoder_(peer, pool, traffic.received), queue_(pool, queue_reserve) {}

  // Takes the socket and lets `watcher` report `tag` for it. Returns false if the socket cannot be watched; it is then closed.
  bool attach(std::unique_ptr<StreamSocket> socket, StreamWatcher& watcher, uint64_t tag);
  bool attached() const { return socket_ != nullptr; }
  // Drops all queued frames, and appends the ids for which sent(id) must be reported. Returns the socket, which can be used for
  // a TcpDrain. It is no longer watched.
  std::unique_ptr<StreamSocket> detach(std::vector<uint64_t>& sent);

  // Writes as much as the kernel takes at once, and queues the rest. Returns true if the payload is no longer needed.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  bool flush(std::vector<uint64_t>& sent);
  // Reads until the socket is empty, read_bytes_max is reached, or the stream has ended. Returns true if it has read anything,
  // or if the stream has ended.
  bool read(Sink& sink);
  void cancel_receive(uint32_t group, uint64_t operation) { decoder_.cancel(group, operation); }
  void cancel_sends(uint64_t match, uint64_t mask);

  bool ended() const { return ended_; }
  bool orderly() const { return orderly_; }
  // Returns true if nothing can be read now. When one stream of a link has failed, the link does not wait for its quiet
  // streams.
  bool quiet() const { return ended_ || drained_; }
  // Returns true if poll() must handle this stream although the kernel reports no event.
  bool wants_poll(const PayloadPool& pool, PeerIndex peer) const;
  FrameFault fault() const { return fault_; }
  // Returns why the stream ended, like "connection reset by peer".
  std::string end_text() const;

  const TcpSendQueue& queue() const { return queue_; }
  // Tells the watcher which events of this stream must wake a sleeping process.
  void update_interest();
  void end(int error);
  // Call this only if attached() is true.
  StreamSocket& socket() const { return *socket_; }

 private:
  void write_failed(int error);

  TcpTraffic& traffic_;
  TcpDecoder decoder_;
  TcpSendQueue queue_;
  std::unique_ptr<StreamSocket> socket_;
  StreamWatcher* watcher_ = nullptr;
  uint64_t tag_ = 0;
  bool watched_readable_ = false, watched_writable_ = false;
  bool paused_ = false;   // the decoder has no memory for a payload
  bool drained_ = false;  // the last read found the socket empty
  bool ended_ = false;
  bool orderly_ = false;  // the peer closed the connection without an error
  int error_ = 0;
  // The error of a write that failed. The stream does not end at once, because the peer's last frames may still be readable.
  int write_error_ = 0;
  FrameFault fault_ = FrameFault::none;
};

}  // namespace unisono

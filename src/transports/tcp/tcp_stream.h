// One connection of a link after its handshake: a socket, the frames that wait for it, and the decoder of arriving bytes.
//
// Reads and writes what the kernel takes at once. The stream remembers its end, whatever the cause, and the link reports it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "net/tcp_socket.h"
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
  // One read() stops after this many bytes, so that one fast peer cannot hold up the others.
  static constexpr size_t read_bytes_max = 4u << 20;

  TcpStream(PeerIndex peer, PayloadPool& pool, TcpTraffic& traffic, size_t queue_reserve)
      : traffic_(traffic), decoder_(peer, pool, traffic.received), queue_(pool, queue_reserve) {}

  // Takes the socket and registers it with `epoll` under `tag`. Fails when the kernel has no more watches.
  bool attach(Descriptor socket, int epoll, uint64_t tag);
  bool attached() const { return socket_.open(); }
  // Drops all queued frames, appends the ids to be reported, and returns the socket, for example for a TcpDrain.
  Descriptor detach(std::vector<uint64_t>& sent);

  // Writes at once what the kernel takes, and queues the rest. Returns true if the payload is not needed any more.
  bool send(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  bool flush(std::vector<uint64_t>& sent);
  // Reads until nothing is there, read_bytes_max is reached or the stream has ended. True if anything came.
  bool read(Sink& sink);
  void cancel(uint64_t match, uint64_t mask, uint32_t group, uint64_t operation);

  bool ended() const { return ended_; }
  bool orderly() const { return orderly_; }
  // Nothing can be read now. Once the link has ended elsewhere, it need not wait for this stream.
  bool quiet() const { return ended_ || drained_; }
  // poll() has work here although the kernel reports nothing new.
  bool wants_poll(const PayloadPool& pool, PeerIndex peer) const;
  FrameFault fault() const { return fault_; }
  // The reason for the end, like "connection reset by peer".
  std::string end_text() const;

  const TcpSendQueue& queue() const { return queue_; }
  // Tells the kernel which events shall wake a sleeper for this stream.
  void update_interest();
  bool silent(Nanos silence) const { return host_is_silent(socket_.get(), silence); }
  bool all_acknowledged() const { return unisono::all_acknowledged(socket_.get()); }
  void end(int error);
  const Descriptor& socket() const { return socket_; }

 private:
  void write_failed(int error);

  TcpTraffic& traffic_;
  TcpDecoder decoder_;
  TcpSendQueue queue_;
  Descriptor socket_;
  int epoll_ = -1;
  uint64_t tag_ = 0;
  uint32_t interest_ = 0;
  bool paused_ = false;   // the decoder has no memory for a payload
  bool drained_ = false;  // the last read found the socket empty
  bool ended_ = false;
  bool orderly_ = false;  // the other side closed the connection
  int error_ = 0;
  int write_error_ = 0;  // kept for later: the peer's last frames may still be readable
  FrameFault fault_ = FrameFault::none;
};

}  // namespace unisono

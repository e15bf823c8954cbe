// Turns the bytes of one stream into frames: the receiving state machine, without a socket.
//
// The caller asks for space, reads into it, and reports how much came. Payloads are read straight into the sink's receive
// buffer, or into a block that becomes a zero-copy view. The space continues behind the payload in the inbox, so one readv
// takes the rest of one frame and the beginning of the next. While small frames are expected, the inbox takes many of them at
// once, and they are copied out of it. Behind large frames only a little is read ahead, so their payloads are not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <sys/uio.h>

#include "transports/payload_pool.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono {

// Counters of one or several decoders.
struct TcpReceiveCounters {
  uint64_t frames = 0;
  uint64_t bytes = 0;
};

class TcpDecoder {
 public:
  static constexpr size_t inbox_bytes = 64u << 10;
  // How much is read ahead of large frames: a few headers. Everything behind them in the inbox must be copied.
  static constexpr size_t ahead_bytes = 1u << 10;
  // After a payload of this size the decoder expects large frames: copying them would cost more than a second system call.
  static constexpr size_t large_bytes = 16u << 10;

  enum class Progress : uint8_t {
    more,       // read on
    no_memory,  // the peer's share of the pool is used up; call resume() after something was released
    fault,      // the stream is damaged; see fault(). Only reset() is allowed now
  };
  struct Space {
    iovec parts[2] = {};
    int count = 0;
    size_t bytes() const { return (count > 0 ? parts[0].iov_len : 0) + (count > 1 ? parts[1].iov_len : 0); }
  };

  TcpDecoder(PeerIndex from, PayloadPool& pool, TcpReceiveCounters& counters)
      : from_(from), pool_(pool), counters_(counters), inbox_(std::make_unique_for_overwrite<std::byte[]>(inbox_bytes)) {}
  ~TcpDecoder() { reset(); }
  TcpDecoder(const TcpDecoder&) = delete;
  TcpDecoder& operator=(const TcpDecoder&) = delete;

  // The memory for the next read; never empty after Progress::more.
  Space space();
  // `bytes` were read into the space() given last.
  Progress took(size_t bytes, Sink& sink);
  Progress resume(Sink& sink) { return took(0, sink); }
  // The receive buffer for a frame of this operation may not be touched any more; the rest of that frame is dropped.
  void cancel(uint32_t group, uint64_t operation);
  // Returns to the state of a new stream. A half-filled block goes back to the pool.
  void reset();

  size_t payload_bytes() const { return header_.payload_bytes; }
  FrameFault fault() const { return fault_; }
  bool between_frames() const { return !in_payload_ && begin_ == end_; }

 private:
  bool begin_frame(Sink& sink);
  bool find_target(Sink& sink);
  bool fill_from_inbox();
  bool finish_frame(Sink& sink);

  PeerIndex from_;
  PayloadPool& pool_;
  TcpReceiveCounters& counters_;
  std::unique_ptr<std::byte[]> inbox_;
  size_t begin_ = 0, end_ = 0;   // unread part of the inbox
  FrameHeader header_;           // of the frame whose payload is coming
  std::byte* target_ = nullptr;  // where its payload lands; null while discarding, or without memory
  PayloadPool::Block block_;     // the block, if the payload will be a zero-copy view
  size_t done_ = 0;              // bytes of the payload that have landed
  bool in_payload_ = false;
  bool asked_ = false;  // the sink was asked for a receive buffer for this frame
  bool discard_ = false;
  bool expect_large_ = false;
  FrameFault fault_ = FrameFault::none;
};

}  // namespace unisono

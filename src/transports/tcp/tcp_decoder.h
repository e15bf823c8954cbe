// Turns the bytes of one stream into frames. It is the receiving state machine of a stream, and has no socket.
//
// The caller gets memory from space(), reads bytes into it, and passes the number of these bytes to took(). Payloads are read
// straight into the sink's receive buffer, or into a block of the pool that the sink gets as a zero-copy view. space() returns
// two pieces of memory: first the missing part of the payload, then the inbox (a small buffer of the decoder). Therefore one
// readv can read the end of one frame and the beginning of the next. If small frames are expected, the inbox takes many frames
// at once. A payload that lies whole in the inbox is given to the sink as a zero-copy view of it, if it is not too small; other
// payloads are copied out of it. If large frames are expected, only a little is read into the inbox, so that large payloads
// are not copied.
//
// If the sink keeps a view of the inbox, the decoder goes on with another inbox, and the old one counts as memory that the peer
// holds.
//
// The decoder counts the position of the stream, which outlives connections. Where a connection breaks, also inside a header or
// a payload, the decoder goes on with the next one's first byte of a frame: nothing has to be told to it. It handles the kinds
// confirm, nothing and leaving itself, and the sink does not see them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include <sys/uio.h>

#include "transports/payload_pool.h"
#include "transports/transport.h"
#include "wire/frame.h"

namespace unisono {

// Receive counters, shared by all decoders of a link.
struct TcpReceiveCounters {
  uint64_t frames = 0;
  uint64_t bytes = 0;
};

class TcpDecoder {
 public:
  static constexpr size_t inbox_bytes = 64u << 10;
  // After a large frame, at most this many bytes are read ahead into the inbox: a few headers. Payload bytes that are read
  // ahead must be copied later.
  static constexpr size_t ahead_bytes = 1u << 10;
  // After a payload of at least this size, the decoder expects large frames. Frames without payload change nothing. For large
  // frames, copying costs more than a second system call.
  static constexpr size_t large_bytes = 64u << 10;
  // Smaller payloads are always copied out of the inbox: a sink that keeps the view of one would keep a whole inbox for it.
  static constexpr size_t lent_bytes_min = 4u << 10;
  // If the peer holds more memory than this, payloads are copied out of the inbox, so that its share lasts longer.
  static constexpr size_t held_bytes_max = 1u << 20;

  enum class Progress : uint8_t {
    more,       // read the next bytes
    no_memory,  // The peer has used up its share of the pool. Call resume() when a view has been released.
    fault,      // The stream is damaged; fault() says how. From now on, only reset() may be called.
  };
  // Hears what the peer confirms.
  class Confirmations {
   public:
    virtual ~Confirmations() = default;
    // A frame's header has arrived that says `low` (FrameHeader::confirmed). This comes before the sink is asked for the buffer
    // of the frame's payload, because a confirmation may set that buffer free. A frame that is sent again may say an older
    // value than the frame before. The callee may use the sink.
    virtual void confirmed(uint32_t low, Sink& sink) = 0;
  };
  // The confirmations that the peer wants, since the last take_request().
  struct Request {
    bool now = false;     // a complete frame asked for a confirmation at once
    uint32_t frames = 0;  // complete frames, without those that only confirm
  };
  struct Space {
    iovec parts[2] = {};
    int count = 0;
    size_t bytes() const { return (count > 0 ? parts[0].iov_len : 0) + (count > 1 ? parts[1].iov_len : 0); }
  };

  TcpDecoder(PeerIndex from, PayloadPool& pool, TcpReceiveCounters& counters, Confirmations* confirmations = nullptr)
      : from_(from),
        pool_(pool),
        counters_(counters),
        confirmations_(confirmations),
        inbox_(pool.take(PayloadPool::inbox_owner, inbox_bytes)) {
    if (!inbox_) throw std::bad_alloc();
  }
  ~TcpDecoder();
  TcpDecoder(const TcpDecoder&) = delete;
  TcpDecoder& operator=(const TcpDecoder&) = delete;

  // Returns the memory for the next read. After Progress::more it is never empty.
  Space space();
  // Call this after `bytes` bytes were read into the memory that the last space() returned.
  Progress took(size_t bytes, Sink& sink);
  Progress resume(Sink& sink) { return took(0, sink); }
  // If a frame of this operation is half received, no more bytes are written into the sink's receive buffer. The rest of that
  // frame is discarded.
  void cancel(uint32_t group, uint64_t operation);
  // From now on no upcall is made, except to Confirmations: what is half received and what follows is discarded.
  void discard_all();
  // If true, payloads get memory although the peer has used up its share of the pool.
  void exceed_share(bool exceeds) { exceeds_share_ = exceeds; }
  // Returns true if a block of the pool is half filled.
  bool holds_memory() const { return static_cast<bool>(block_); }
  // Returns how many bytes of the stream were read, in all its connections. This is the position that a confirmation says.
  uint64_t position() const { return position_; }
  Request take_request() { return std::exchange(request_, {}); }
  // Returns true if the peer has sent its last frame.
  bool left() const { return left_; }
  // Prepares the decoder for a new stream, at position 0. If a block is half filled, it is given back to the pool.
  void reset();

  size_t payload_bytes() const { return header_.payload_bytes; }
  FrameFault fault() const { return fault_; }
  bool between_frames() const { return !in_payload_ && begin_ == end_; }

 private:
  bool begin_frame(Sink& sink);
  bool find_target(Sink& sink);
  bool fill_from_inbox();
  bool finish_frame(Sink& sink);
  bool can_lend();
  void replace_inbox();
  bool is_for_sink() const { return header_.kind < FrameKind::confirm; }

  PeerIndex from_;
  PayloadPool& pool_;
  TcpReceiveCounters& counters_;
  Confirmations* confirmations_;
  PayloadPool::Block inbox_;
  PayloadPool::Block spare_;    // the next inbox; it is taken before a view of the inbox is given away
  size_t begin_ = 0, end_ = 0;  // unread part of the inbox
  FrameHeader header_;          // header of the frame whose payload is being received
  // Where the payload of header_ is written. Null if the payload is discarded, or if there is no memory for it.
  std::byte* target_ = nullptr;
  PayloadPool::Block block_;  // If the payload will be a zero-copy view: the pool block that contains target_.
  size_t done_ = 0;           // this many payload bytes have been received
  bool in_payload_ = false;
  bool buffer_requested_ = false;  // sink.receive_buffer() was already called for this frame, or the frame has no payload
  bool discard_ = false;           // the payload of header_ is discarded
  bool discards_all_ = false;
  bool exceeds_share_ = false;
  bool expect_large_ = false;
  bool left_ = false;
  FrameFault fault_ = FrameFault::none;
  uint64_t position_ = 0;
  Request request_;
};

}  // namespace unisono

// Frames that wait for one stream's socket, in order. No socket here: the stream writes what gather() shows.
//
// Payloads stay where the sender has them, except small ones and those that were cancelled in the middle: these are copied
// into blocks of the pool. The ring grows only beyond its reserve and never shrinks, so it does not allocate once warm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "base/bytes.h"
#include "transports/payload_pool.h"
#include "wire/frame.h"

namespace unisono {

class TcpSendQueue {
 public:
  // Payloads up to this size are copied rather than waited for.
  static constexpr size_t copied_bytes_max = 4096;
  static constexpr int gather_max = 32;  // parts of one system call: 16 frames
  static constexpr size_t gather_bytes_max = 4u << 20;

  struct Frame {
    FrameHeader header;
    uint32_t header_left = sizeof(FrameHeader);  // bytes not yet written
    const std::byte* payload = nullptr;          // the part not yet written
    size_t payload_left = 0;
    uint64_t id = 0;
    uint64_t block = 0;   // handle of the copy that payload points into; 0 if it is the sender's memory
    bool notify = false;  // sent(id) is owed
    size_t left() const { return header_left + payload_left; }
    void advance(size_t bytes);
  };
  // Parts of one frame that are not written yet; at most two.
  static int parts_of(const Frame& frame, iovec* parts);

  TcpSendQueue(PayloadPool& pool, size_t reserve);
  ~TcpSendQueue();
  TcpSendQueue(const TcpSendQueue&) = delete;
  TcpSendQueue& operator=(const TcpSendQueue&) = delete;

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }

  // Takes a frame, of which a part may be written already. Copies its payload if that is small and memory is there; returns
  // true if the sender's memory is not needed any more.
  bool push(Frame frame);
  // Shows the next bytes to write. Returns the number of parts.
  int gather(iovec* parts, size_t& bytes) const;
  // `bytes` of these were written. Ids of finished frames that owe a notice are appended; returns finished frames.
  size_t wrote(size_t bytes, std::vector<uint64_t>& sent);
  // See Transport::cancel. Returns false if half a frame was cancelled and there was no memory to copy its rest: then the
  // stream cannot go on.
  bool cancel(uint64_t match, uint64_t mask);
  // What the other side must still get when nothing more is sent: the rest of a frame half written, and frames that the queue
  // owns. None of the sender's memory if it may have gone.
  Bytes last_words(bool memory_valid) const;
  // Drops everything; ids that owe a notice are appended.
  void clear(std::vector<uint64_t>& sent);

 private:
  Frame& at(size_t index) { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  const Frame& at(size_t index) const { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  bool copy_payload(Frame& frame);
  void grow();

  PayloadPool& pool_;
  std::vector<Frame> ring_;  // a power of two
  size_t first_ = 0;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace unisono

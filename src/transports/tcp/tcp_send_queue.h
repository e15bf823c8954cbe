// Frames that wait for one stream's socket, in order. It has no socket: the stream writes what gather() shows.
//
// Payloads stay in the sender's memory. Small ones, and those cancelled in the middle, are copied into blocks of the pool. The
// ring grows only beyond its reserve and never shrinks, so a warm queue does not allocate.
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
  // Payloads up to this size are copied at once, so that their sender need not wait.
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
    bool notify = false;  // sent(id) is still to be reported
    size_t left() const { return header_left + payload_left; }
    void advance(size_t bytes);
  };
  // The unwritten parts of one frame; at most two.
  static int parts_of(const Frame& frame, iovec* parts);

  TcpSendQueue(PayloadPool& pool, size_t reserve);
  ~TcpSendQueue();
  TcpSendQueue(const TcpSendQueue&) = delete;
  TcpSendQueue& operator=(const TcpSendQueue&) = delete;

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }

  // Takes a frame that may be partly written. Copies a small payload if there is memory. Returns true if the sender's memory is
  // not needed any more.
  bool push(Frame frame);
  // Shows the next bytes to write. Returns the number of parts.
  int gather(iovec* parts, size_t& bytes) const;
  // `bytes` of the gathered ones were written. Appends the ids of finished frames to be reported; returns how many frames
  // finished.
  size_t wrote(size_t bytes, std::vector<uint64_t>& sent);
  // See Transport::cancel. Returns false if half a frame was cancelled and there was no memory to copy its rest: then the
  // stream cannot continue.
  bool cancel(uint64_t match, uint64_t mask);
  // The bytes that the other side must still get when nothing more is sent: the rest of a half-written frame, and frames that
  // the queue owns. Leaves out the sender's memory unless memory_valid.
  Bytes unsent_bytes(bool memory_valid) const;
  // Drops everything; appends the ids to be reported.
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

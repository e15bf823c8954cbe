// The queue of frames that wait for the socket of one stream. The queue itself has no socket: gather() returns the bytes to
// write, and the stream writes them.
//
// Payloads stay in the sender's memory, with two exceptions: small payloads, and payloads that are cancelled when they are half
// written. These are copied into blocks of the pool. The circular buffer grows only when it is full, and it never shrinks.
// Therefore a queue whose length no longer grows does not allocate.
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
  // A payload up to this size is copied at once, so that its sender need not wait for sent(id).
  static constexpr size_t copied_bytes_max = 4096;
  static constexpr int gather_max = 32;  // One system call writes at most this many parts; a frame has up to two parts.
  static constexpr size_t gather_bytes_max = 4u << 20;

  struct Frame {
    FrameHeader header;
    uint32_t header_left = sizeof(FrameHeader);  // header bytes not yet written
    const std::byte* payload = nullptr;          // the first payload byte not yet written
    size_t payload_left = 0;
    uint64_t id = 0;
    uint64_t block = 0;   // handle of the pool block with the payload; 0: it is in the sender's memory
    bool notify = false;  // when the frame is written, sent(id) must be reported
    size_t left() const { return header_left + payload_left; }
    void advance(size_t bytes);
  };
  // Fills `parts` with those parts of one frame that are not yet written. Returns their number, at most two.
  static int parts_of(const Frame& frame, iovec* parts);

  TcpSendQueue(PayloadPool& pool, size_t reserve);
  ~TcpSendQueue();
  TcpSendQueue(const TcpSendQueue&) = delete;
  TcpSendQueue& operator=(const TcpSendQueue&) = delete;

  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }

  // Queues a frame, of which a part may already be written. If the payload is small and there is memory, the payload is copied.
  // Returns true if the sender's memory is no longer needed.
  bool push(Frame frame);
  // Fills `parts` with the next bytes to write and `bytes` with their number. Returns the number of parts.
  int gather(iovec* parts, size_t& bytes) const;
  // Call this after `bytes` of the gathered bytes were written. For frames that are now finished, it appends the ids whose
  // sent(id) must be reported. Returns how many frames are finished.
  size_t wrote(size_t bytes, std::vector<uint64_t>& sent);
  // Implements Transport::cancel for this queue. A half-written frame must be copied; if there is no memory for this, the
  // stream cannot continue, and the result is false.
  bool cancel(uint64_t match, uint64_t mask);
  // Returns the bytes to write before the connection ends: the rest of a half-written frame, and all frames whose bytes are in
  // the queue's own memory. memory_valid says whether the sender's memory can still be read. If it cannot, and the payload of
  // the half-written frame is there, returns nothing.
  Bytes unsent_bytes(bool memory_valid) const;
  // Drops all frames. Appends the ids for which sent(id) must be reported.
  void clear(std::vector<uint64_t>& sent);

 private:
  Frame& at(size_t index) { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  const Frame& at(size_t index) const { return ring_[(first_ + index) & (ring_.size() - 1)]; }
  bool copy_payload(Frame& frame);
  void grow();

  PayloadPool& pool_;
  std::vector<Frame> ring_;  // circular buffer; its size is a power of two
  size_t first_ = 0;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

}  // namespace unisono

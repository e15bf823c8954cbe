// The queue of frames to one peer. A frame is queued as a whole, sent as fragments, and kept until every fragment has arrived.
//
// A payload stays in the sender's memory until all its fragments have arrived; then its id is reported as sent. A small payload
// is copied at once. A frame is cut into fragments only after all fragments of the earlier frames were sent once. If a frame is
// cancelled while it still waits, it is just dropped. If it has already been cut, it is copied and sent to its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transports/payload_pool.h"
#include "transports/udp/reliable/udp_fragments.h"
#include "wire/frame.h"

namespace unisono {

class UdpFrames {
 public:
  // Payloads up to this size are copied, because a copy is cheaper than the report sent(id).
  static constexpr size_t copied_bytes_max = 4096;

  explicit UdpFrames(PayloadPool& pool, uint32_t recut_bytes = recut_fragment_bytes);
  ~UdpFrames();
  UdpFrames(const UdpFrames&) = delete;
  UdpFrames& operator=(const UdpFrames&) = delete;

  // Queues a frame whose header is already sealed. Returns true if the sender's payload is no longer needed.
  bool push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  size_t count() const { return waiting() + begun_; }
  bool empty() const { return count() == 0; }
  // Cancels the frames with (id & mask) == match. The memory of their senders is no longer used, and nothing is reported.
  // Returns false if there was no memory for a copy; in this case the link must end.
  bool cancel(uint64_t match, uint64_t mask);
  // Stops using the memory of all senders, and reports the frames that used it as sent. Frames that are already cut are copied.
  // Waiting frames are dropped if their payload is in a sender's memory. Returns false if there was no memory for a copy.
  bool detach_senders(std::vector<uint64_t>& sent);
  // Drops all frames and reports them as sent.
  void clear(std::vector<uint64_t>& sent);

  // Returns the fragment to send next. If the call cuts a frame, it cuts it into fragments of fragment_bytes.
  std::optional<FragmentPosition> next(uint32_t fragment_bytes);
  FragmentParts parts(const FragmentPosition& position) const;
  void taken(FragmentName name) { queue_.taken(name); }
  void lost(FragmentName name) { queue_.lost(name); }
  void arrived(FragmentName name, std::vector<uint64_t>& sent);
  // See FragmentQueue::recut().
  void recut() { queue_.recut(); }

  // Return the number and the bytes (including headers) of all frames that were cut so far.
  uint64_t sent_frames() const { return sent_frames_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> payload{};
    uint64_t id = 0;
    uint64_t block = 0;   // the pool block with the payload; 0: the payload is in the sender's memory
    bool notify = false;  // the payload is in the sender's memory, and sent(id) must be reported
    bool open = false;
  };
  size_t waiting() const { return waiting_.size() - first_; }
  bool copy(Frame& frame);
  void release(Frame& frame, std::vector<uint64_t>* sent);

  PayloadPool& pool_;
  FragmentQueue queue_;
  std::vector<Frame> cut_;      // frames that are being sent; frame number n is at n % fragment_frames_max
  std::vector<Frame> waiting_;  // frames that are not cut yet; the first is at first_
  size_t first_ = 0, begun_ = 0;
  uint64_t sent_frames_ = 0, sent_bytes_ = 0;
};

}  // namespace unisono

// Frames for one peer: queued whole, sent as fragments, and kept until every fragment has arrived.
//
// A payload stays in the sender's memory until all its fragments have arrived; then its id is reported as sent. Small payloads
// are copied at once. A frame is cut into fragments only when all fragments of earlier frames were sent once. So a cancelled
// frame that waits is simply dropped, and one that has begun is copied and finished.
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
  static constexpr size_t copied_bytes_max = 4096;  // shorter payloads are cheaper to copy than to report

  explicit UdpFrames(PayloadPool& pool);
  ~UdpFrames();
  UdpFrames(const UdpFrames&) = delete;
  UdpFrames& operator=(const UdpFrames&) = delete;

  // Seals the header. Returns true if the payload is not needed any more.
  bool push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  size_t count() const { return waiting() + begun_; }
  bool empty() const { return count() == 0; }
  // Matching frames stop using their sender's memory, and are not reported. False: there was no memory for a copy, so the link
  // must end.
  bool cancel(uint64_t match, uint64_t mask);
  // The sender's memory goes away. Frames that have not begun are dropped unless this class owns their payload; begun ones are
  // copied. Both are reported as sent. False: there was no memory for a copy.
  bool leave(std::vector<uint64_t>& sent);
  // Drops all frames and reports them as sent.
  void clear(std::vector<uint64_t>& sent);

  // The fragment to send next. fragment_bytes applies to a frame that is cut now.
  std::optional<FragmentPlace> next(uint32_t fragment_bytes);
  FragmentParts parts(const FragmentPlace& place) const;
  void taken(FragmentName name) { queue_.taken(name); }
  void lost(FragmentName name) { queue_.lost(name); }
  void arrived(FragmentName name, std::vector<uint64_t>& sent);

  // Counts of frames that were cut: headers and payloads.
  uint64_t sent_frames() const { return sent_frames_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> payload{};
    uint64_t id = 0;
    uint64_t block = 0;   // block of the pool, if the payload is a copy
    bool notify = false;  // the payload is in the sender's memory
    bool open = false;
  };
  size_t waiting() const { return waiting_.size() - first_; }
  bool copy(Frame& frame);
  void release(Frame& frame, std::vector<uint64_t>* sent);

  PayloadPool& pool_;
  FragmentQueue queue_;
  std::vector<Frame> cut_;      // by number modulo fragment_frames_max
  std::vector<Frame> waiting_;  // from first_
  size_t first_ = 0, begun_ = 0;
  uint64_t sent_frames_ = 0, sent_bytes_ = 0;
};

}  // namespace unisono

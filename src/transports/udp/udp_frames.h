// Frames that go to one peer: queued whole, given out as fragments, kept until every fragment has arrived.
//
// A payload stays where its sender has it until then, and `sent` is told of it; small ones are copied at once. A frame is cut
// only when all before it have been given out, so that what is cancelled while it waits is simply dropped; what has begun must
// be finished, and is copied then.
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
  static constexpr size_t copied_bytes_max = 4096;  // what is shorter is cheaper to copy than to report

  explicit UdpFrames(PayloadPool& pool);
  ~UdpFrames();
  UdpFrames(const UdpFrames&) = delete;
  UdpFrames& operator=(const UdpFrames&) = delete;

  // The header is sealed. True: the payload is not needed any more.
  bool push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id);
  size_t count() const { return waiting() + begun_; }
  bool empty() const { return count() == 0; }
  // Frames that match lose their sender's memory without being reported. False: there was no memory for a copy, the link must
  // end.
  bool cancel(uint64_t match, uint64_t mask);
  // The sender's memory goes away: what has not begun is dropped unless it is ours, what has is copied
  // Both are reported as sent. False: no memory for a copy.
  bool leave(std::vector<uint64_t>& sent);
  // All of it, reported as sent.
  void clear(std::vector<uint64_t>& sent);

  // The fragment to send next. fragment_bytes: for frames that are cut now.
  std::optional<FragmentPlace> next(uint32_t fragment_bytes);
  FragmentParts parts(const FragmentPlace& place) const;
  void taken(FragmentName name) { queue_.taken(name); }
  void lost(FragmentName name) { queue_.lost(name); }
  void arrived(FragmentName name, std::vector<uint64_t>& sent);

  // Frames that were cut, headers and payloads.
  uint64_t sent_frames() const { return sent_frames_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Frame {
    FrameHeader header;
    std::span<const std::byte> payload{};
    uint64_t id = 0;
    uint64_t block = 0;   // the pool's, if the payload is a copy
    bool notify = false;  // the payload is the sender's
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

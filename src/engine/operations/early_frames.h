// Early frames are frames that arrive before their operation or group begins on this rank. They are kept as copies, in the
// order of their arrival. They are removed when the operation begins. If it never will, they are dropped.
//
// Memory is bounded: for each operation, by the eager limit of the senders; for all frames together, by bytes_max. The engine
// owns this object, and its buffer pool provides the memory for payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "engine/buffer_pool.h"
#include "wire/frame.h"
#include "wire/peer_id.h"

namespace unisono {

struct EarlyFrame {
  PeerIndex from = 0;
  FrameHeader header;
  std::byte* data = nullptr;  // the payload, with header.payload_bytes bytes; it is in the buffer pool

  ByteView payload() const { return {data, header.payload_bytes}; }
};

class EarlyFrames {
 public:
  EarlyFrames(BufferPool& pool, size_t bytes_max) : pool_(pool), bytes_max_(bytes_max) {}
  EarlyFrames(const EarlyFrames&) = delete;
  EarlyFrames& operator=(const EarlyFrames&) = delete;
  ~EarlyFrames() {
    drop_if([](const EarlyFrame&) { return true; });
  }

  bool empty() const { return frames_.empty(); }
  size_t bytes() const { return bytes_; }
  const std::vector<EarlyFrame>& frames() const { return frames_; }

  bool fits(size_t bytes) const { return bytes_ + bytes <= bytes_max_; }
  // Keeps a copy of the frame. Call it only if fits() has returned true.
  void keep(PeerIndex from, const FrameHeader& header, ByteView payload);
  // Removes the frames for which `matches` is true, then calls use(frame) for each of them, in the order of arrival. If use()
  // returns true, the caller owns the payload. Otherwise the payload returns to the pool.
  template <typename Matches, typename Use>
  void take(const Matches& matches, const Use& use) {
    auto taken = std::move(taken_);
    taken.reserve(frames_.size());
    std::erase_if(frames_, [&](const EarlyFrame& frame) {
      const bool match = matches(frame);
      if (match) taken.push_back(frame);
      return match;
    });
    for (const auto& frame : taken) {
      bytes_ -= frame.header.payload_bytes;
      if (!use(frame)) pool_.release(frame.data, frame.header.payload_bytes);
    }
    taken.clear();
    taken_ = std::move(taken);
  }
  template <typename Matches>
  void drop_if(const Matches& matches) {
    std::erase_if(frames_, [&](const EarlyFrame& frame) {
      if (!matches(frame)) return false;
      bytes_ -= frame.header.payload_bytes;
      pool_.release(frame.data, frame.header.payload_bytes);
      return true;
    });
  }

 private:
  BufferPool& pool_;
  const size_t bytes_max_;
  std::vector<EarlyFrame> frames_;
  std::vector<EarlyFrame> taken_;  // used by take() only; it is a member so that its memory is used again
  size_t bytes_ = 0;
};

}  // namespace unisono

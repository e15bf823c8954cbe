// Frames that arrived before their operation, or their group, began on this rank. They are copied here in order of arrival, and
// taken out when the operation begins, or dropped when it never can.
//
// Bounded: the senders' eager limit bounds each operation, and bytes_max bounds all of them together; keep() beyond that
// refuses. The engine owns it; payloads come from the engine's buffer pool.
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
  std::byte* data = nullptr;  // header.payload_bytes of the pool's

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
  // Copies the frame, which must fit.
  void keep(PeerIndex from, const FrameHeader& header, ByteView payload);
  // Takes out the frames that `matches` holds for, in order of arrival, and hands each to `use(frame)`. All of them are out
  // before the first is used. use() returns true if the payload is its own now; else it goes back to the pool.
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
      if (!use(frame)) pool_.give(frame.data, frame.header.payload_bytes);
    }
    taken.clear();
    taken_ = std::move(taken);
  }
  template <typename Matches>
  void drop_if(const Matches& matches) {
    std::erase_if(frames_, [&](const EarlyFrame& frame) {
      if (!matches(frame)) return false;
      bytes_ -= frame.header.payload_bytes;
      pool_.give(frame.data, frame.header.payload_bytes);
      return true;
    });
  }

 private:
  BufferPool& pool_;
  const size_t bytes_max_;
  std::vector<EarlyFrame> frames_;
  std::vector<EarlyFrame> taken_;  // empty between calls of take(), which use its memory again
  size_t bytes_ = 0;
};

}  // namespace unisono

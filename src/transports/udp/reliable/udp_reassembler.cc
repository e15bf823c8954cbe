#include "transports/udp/reliable/udp_reassembler.h"

#include <algorithm>
#include <cstring>

#include "base/prefetch.h"
#include "wire/checksum.h"

namespace unisono {

const char* name(FragmentResult result) {
  switch (result) {
    case FragmentResult::stored: return "stored";
    case FragmentResult::whole: return "whole";
    case FragmentResult::duplicate: return "duplicate";
    case FragmentResult::no_memory: return "no memory";
    case FragmentResult::outdated: return "outdated";
    case FragmentResult::ahead: return "ahead";
    case FragmentResult::inconsistent: return "inconsistent";
    case FragmentResult::corrupt: return "corrupt";
  }
  return "?";
}

Reassembler::Reassembler(PeerIndex from, PayloadPool& pool, uint32_t recut_bytes)
    : from_(from), pool_(pool), recut_bytes_(recut_bytes) {}

FragmentResult Reassembler::add(const FragmentPosition& position, std::span<const std::byte> payload, Sink& sink) {
  if (fault_ != FrameFault::none) return FragmentResult::corrupt;
  // The sender's window (the frames that it may send) has fragment_frames_max frames, and begins at the sender's oldest
  // unconfirmed frame. That frame is not after our oldest_, because a confirmed frame has arrived here. Therefore a valid frame
  // is less than fragment_frames_max after oldest_. All frames before oldest_ have arrived.
  const uint32_t ahead = position.name.frame - oldest_;
  if (static_cast<int32_t>(ahead) < 0) return FragmentResult::duplicate;
  if (ahead >= fragment_frames_max) return FragmentResult::ahead;
  frames_.resize(fragment_frames_max);  // with the first fragment: most links of a large group carry none
  auto& frame = this->frame(position.name.frame);
  if (frame.state == State::over) return FragmentResult::duplicate;
  if (frame.state == State::empty) begin(frame, position);
  if (frame.frame_bytes != position.frame_bytes) return FragmentResult::inconsistent;
  if (frame.fragment_bytes != position.fragment_bytes) {
    const bool is_recut = frame.fragment_bytes == recut_bytes_;
    if (is_recut && position.fragment_bytes > recut_bytes_) return FragmentResult::outdated;
    if (position.fragment_bytes != recut_bytes_ || frame.fragment_bytes < recut_bytes_) return FragmentResult::inconsistent;
    recut(frame);
  }
  auto& word = frame.stored[position.name.index / 64];
  const uint64_t bit = uint64_t{1} << (position.name.index % 64);
  if ((word & bit) != 0) return FragmentResult::duplicate;

  const bool first = position.name.index == 0;
  if (first && !take_header(frame, payload, sink)) return FragmentResult::corrupt;
  const auto part = first ? payload.subspan(sizeof(FrameHeader)) : payload;
  if (!part.empty() && !frame.discard) {
    if (!find_memory(frame)) return FragmentResult::no_memory;
    const size_t at = first ? 0 : position.offset() - sizeof(FrameHeader);
    std::memcpy(frame.target + at, part.data(), part.size());
    // Prefetch the place where the next fragment will be written. That fragment has probably arrived, and the place is in no
    // cache.
    const size_t end = at + part.size();
    prefetch_to_write({frame.target + end, std::min(part.size(), frame.frame_bytes - sizeof(FrameHeader) - end)});
  }
  word |= bit;
  return ++frame.stored_count == frame.fragments ? finish(frame, sink) : FragmentResult::stored;
}

void Reassembler::begin(Frame& frame, const FragmentPosition& position) {
  frame.state = State::partial;
  frame.header_known = frame.discard = false;
  frame.frame_bytes = position.frame_bytes;
  frame.fragment_bytes = position.fragment_bytes;
  frame.fragments = position.fragments();
  frame.stored_count = 0;
  frame.target = nullptr;
  frame.block = {};
  frame.stored.assign((frame.fragments + 63) / 64, 0);
  ++partial_;
}

void Reassembler::recut(Frame& frame) const {
  frame.stored = recut_bits(frame.stored, frame.frame_bytes, frame.fragment_bytes, recut_bytes_);
  frame.stored_count = count_bits(frame.stored);
  frame.fragment_bytes = recut_bytes_;
  frame.fragments = (frame.frame_bytes + recut_bytes_ - 1) / recut_bytes_;
}

// Handles the frame header in fragment 0: asks the sink for a receive buffer, and copies the fragments that came earlier into
// it. This happens once per frame, even if fragment 0 itself is then refused because there is no memory. Returns false if the
// header is invalid.
bool Reassembler::take_header(Frame& frame, std::span<const std::byte> payload, Sink& sink) {
  if (frame.header_known) return true;
  std::memcpy(&frame.header, payload.data(), sizeof(FrameHeader));
  fault_ = check_frame(frame.header);
  if (fault_ == FrameFault::none && frame.header.payload_bytes != frame.frame_bytes - sizeof(FrameHeader))
    fault_ = FrameFault::payload_bytes;
  if (fault_ != FrameFault::none) return false;
  frame.header_known = true;
  if (frame.header.payload_bytes == 0) return true;
  auto* const target = sink.receive_buffer(from_, frame.header);
  if (target == nullptr) return true;
  if (frame.block) {
    for (uint32_t index = 1; index < frame.fragments && frame.stored_count > 0; ++index) {
      if ((frame.stored[index / 64] >> (index % 64) & 1) == 0) continue;
      const FragmentPosition position{{0, index}, frame.frame_bytes, frame.fragment_bytes};
      const size_t at = position.offset() - sizeof(FrameHeader);
      std::memcpy(target + at, frame.target + at, position.bytes());
    }
    pool_.give(frame.block.handle);
    frame.block = {};
  }
  frame.target = target;
  return true;
}

bool Reassembler::find_memory(Frame& frame) {
  if (frame.target != nullptr) return true;
  frame.block = pool_.take(from_, frame.frame_bytes - sizeof(FrameHeader));
  frame.target = frame.block.data;
  return frame.target != nullptr;
}

FragmentResult Reassembler::finish(Frame& frame, Sink& sink) {
  const View view{frame.target, frame.header.payload_bytes, frame.block.handle};
  const auto header = frame.header;
  const bool wanted = !frame.discard;
  if (wanted && (header.flags & frame_flag_payload_checksum) != 0 && header.payload_checksum != crc32c(view.data, view.bytes)) {
    fault_ = FrameFault::payload_checksum;
    return FragmentResult::corrupt;
  }
  // End the frame before the upcall, because the sink may call the transport in the upcall.
  frame.block = {};
  end(frame);
  if (wanted) sink.received(from_, header, view);
  return FragmentResult::whole;
}

void Reassembler::end(Frame& frame) {
  if (frame.block) pool_.give(frame.block.handle);
  frame.block = {};
  frame.target = nullptr;
  frame.state = State::over;
  --partial_;
  while (this->frame(oldest_).state == State::over) this->frame(oldest_++).state = State::empty;
}

void Reassembler::cancel(uint32_t group, uint64_t operation) {
  if (partial_ == 0) return;
  for (auto& frame : frames_) {
    const bool placed = frame.state == State::partial && frame.header_known && frame.target != nullptr && !frame.block;
    if (!placed || frame.header.group != group || frame.header.operation != operation) continue;
    frame.target = nullptr;
    frame.discard = true;
  }
}

void Reassembler::reset() {
  for (auto& frame : frames_) {
    if (frame.block) pool_.give(frame.block.handle);
    frame.block = {};
    frame.target = nullptr;
    frame.state = State::empty;
  }
  oldest_ = 0;
  partial_ = 0;
  fault_ = FrameFault::none;
}

}  // namespace unisono

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
    case FragmentResult::ahead: return "ahead";
    case FragmentResult::inconsistent: return "inconsistent";
    case FragmentResult::corrupt: return "corrupt";
  }
  return "?";
}

Reassembler::Reassembler(PeerIndex from, PayloadPool& pool) : from_(from), pool_(pool), frames_(fragment_frames_max) {}

FragmentResult Reassembler::add(const FragmentPlace& place, std::span<const std::byte> payload, Sink& sink) {
  if (fault_ != FrameFault::none) return FragmentResult::corrupt;
  // The sender may be fragment_frames_max ahead of the oldest frame that it does not know to have arrived, and that one is
  // never after ours. So every frame before our oldest is finished, and no frame may be further ahead of it.
  const uint32_t ahead = place.name.frame - oldest_;
  if (static_cast<int32_t>(ahead) < 0) return FragmentResult::duplicate;
  if (ahead >= fragment_frames_max) return FragmentResult::ahead;
  auto& frame = this->frame(place.name.frame);
  if (frame.state == State::over) return FragmentResult::duplicate;
  if (frame.state == State::empty) begin(frame, place);
  if (frame.frame_bytes != place.frame_bytes || frame.fragment_bytes != place.fragment_bytes)
    return FragmentResult::inconsistent;
  auto& word = frame.stored[place.name.index / 64];
  const uint64_t bit = uint64_t{1} << (place.name.index % 64);
  if ((word & bit) != 0) return FragmentResult::duplicate;

  const bool first = place.name.index == 0;
  if (first && !take_header(frame, payload, sink)) return FragmentResult::corrupt;
  const auto part = first ? payload.subspan(sizeof(FrameHeader)) : payload;
  if (!part.empty() && !frame.discard) {
    if (!find_memory(frame)) return FragmentResult::no_memory;
    const size_t at = first ? 0 : place.offset() - sizeof(FrameHeader);
    std::memcpy(frame.target + at, part.data(), part.size());
    // The next fragment has probably arrived, and the memory that it will overwrite is in no cache.
    const size_t end = at + part.size();
    prefetch_to_write({frame.target + end, std::min(part.size(), frame.frame_bytes - sizeof(FrameHeader) - end)});
  }
  word |= bit;
  return ++frame.stored_count == frame.fragments ? finish(frame, sink) : FragmentResult::stored;
}

void Reassembler::begin(Frame& frame, const FragmentPlace& place) {
  frame.state = State::partial;
  frame.header_known = frame.discard = false;
  frame.frame_bytes = place.frame_bytes;
  frame.fragment_bytes = place.fragment_bytes;
  frame.fragments = place.fragments();
  frame.stored_count = 0;
  frame.target = nullptr;
  frame.block = {};
  frame.stored.assign((frame.fragments + 63) / 64, 0);
  ++partial_;
}

// Called once per frame, even if fragment 0 is then refused for lack of memory. Asks the sink for a receive buffer and copies
// earlier fragments into it.
bool Reassembler::take_header(Frame& frame, std::span<const std::byte> payload, Sink& sink) {
  if (frame.header_known) return true;
  std::memcpy(&frame.header, payload.data(), sizeof(FrameHeader));
  fault_ = check_frame(frame.header);
  if (fault_ == FrameFault::none && frame.header.payload_bytes != frame.frame_bytes - sizeof(FrameHeader))
    fault_ = FrameFault::payload_bytes;
  if (fault_ != FrameFault::none) return false;
  frame.header_known = true;
  if (frame.header.payload_bytes == 0) return true;
  auto* const target = sink.place(from_, frame.header);
  if (target == nullptr) return true;
  if (frame.block) {
    for (uint32_t index = 1; index < frame.fragments && frame.stored_count > 0; ++index) {
      if ((frame.stored[index / 64] >> (index % 64) & 1) == 0) continue;
      const FragmentPlace place{{0, index}, frame.frame_bytes, frame.fragment_bytes};
      const size_t at = place.offset() - sizeof(FrameHeader);
      std::memcpy(target + at, frame.target + at, place.bytes());
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
  // The sink may call back, so the frame is ended before this upcall.
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

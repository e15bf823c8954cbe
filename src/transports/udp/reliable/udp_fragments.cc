#include "transports/udp/reliable/udp_fragments.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace unisono {

void put_place(const FragmentPlace& place, DatagramHeader& header) {
  header.kind = DatagramKind::fragment;
  header.op = place.name.frame;
  header.packet_index = place.name.index;
  header.deadline_us = place.frame_bytes;
  header.slice = static_cast<uint16_t>(place.fragment_bytes);
  header.payload_bytes = static_cast<uint16_t>(place.bytes());
}

bool get_place(const DatagramHeader& header, FragmentPlace& place) {
  place = {.name{header.op, header.packet_index}, .frame_bytes = header.deadline_us, .fragment_bytes = header.slice};
  if (place.frame_bytes < sizeof(FrameHeader) || place.frame_bytes > frame_bytes_max) return false;
  if (place.fragment_bytes < fragment_bytes_min || place.fragment_bytes > fragment_bytes_max) return false;
  return place.name.index < place.fragments() && header.payload_bytes == place.bytes();
}

FragmentParts fragment_parts(const FragmentPlace& place, const FrameHeader& header, std::span<const std::byte> payload) {
  const size_t begin = place.offset(), end = begin + place.bytes();
  const auto header_bytes = std::as_bytes(std::span(&header, 1));
  FragmentParts parts;
  if (begin < sizeof header) parts.header = header_bytes.subspan(begin, std::min(end, sizeof header) - begin);
  if (end > sizeof header)
    parts.payload = payload.subspan(std::max(begin, sizeof header) - sizeof header, end - std::max(begin, sizeof header));
  return parts;
}

namespace {
bool in(const std::vector<uint64_t>& set, uint32_t index) { return (set[index / 64] >> (index % 64) & 1) != 0; }
void add(std::vector<uint64_t>& set, uint32_t index) { set[index / 64] |= uint64_t{1} << (index % 64); }
void remove(std::vector<uint64_t>& set, uint32_t index) { set[index / 64] &= ~(uint64_t{1} << (index % 64)); }
}  // namespace

FragmentQueue::FragmentQueue() : frames_(fragment_frames_max) {}

uint32_t FragmentQueue::push(uint32_t frame_bytes, uint32_t fragment_bytes) {
  UNISONO_CHECK(!full() && frame_bytes >= sizeof(FrameHeader) && frame_bytes <= frame_bytes_max &&
                fragment_bytes >= fragment_bytes_min && fragment_bytes <= fragment_bytes_max);
  const uint32_t number = next_frame_++;
  auto& frame = frames_[number % fragment_frames_max];
  frame.number = number;
  frame.frame_bytes = frame_bytes;
  frame.fragment_bytes = fragment_bytes;
  frame.fragments = FragmentPlace{.name{}, .frame_bytes = frame_bytes, .fragment_bytes = fragment_bytes}.fragments();
  frame.unsent = frame.arrived_count = frame.lost_count = 0;
  frame.arrived.assign((frame.fragments + 63) / 64, 0);
  frame.lost.assign((frame.fragments + 63) / 64, 0);
  frame.open = true;
  open_bytes_ += frame_bytes;
  return number;
}

FragmentQueue::Frame* FragmentQueue::find(uint32_t number) {
  if (number - oldest_ >= next_frame_ - oldest_) return nullptr;
  auto& frame = frames_[number % fragment_frames_max];
  return frame.open ? &frame : nullptr;
}

std::optional<FragmentPlace> FragmentQueue::next() {
  const auto unsent = next_unsent();
  if (lost_total_ == 0 || (unsent && lost_in_a_row_ >= lost_in_a_row_max)) return unsent;
  return next_lost();
}

// Requires that some fragment is lost.
FragmentPlace FragmentQueue::next_lost() {
  for (;; turn_ = {turn_.frame + 1, 0}) {
    if (turn_.frame - oldest_ >= next_frame_ - oldest_) turn_ = {oldest_, 0};
    const auto* frame = find(turn_.frame);
    if (frame == nullptr || frame->lost_count == 0 || turn_.index >= frame->fragments) continue;
    uint64_t bits = frame->lost[turn_.index / 64] & (~uint64_t{0} << (turn_.index % 64));
    size_t word = turn_.index / 64;
    while (bits == 0 && ++word < frame->lost.size()) bits = frame->lost[word];
    if (bits == 0) continue;
    turn_.index = static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
    return {turn_, frame->frame_bytes, frame->fragment_bytes};
  }
}

std::optional<FragmentPlace> FragmentQueue::next_unsent() {
  for (; unsent_frame_ != next_frame_; ++unsent_frame_) {
    const auto* frame = find(unsent_frame_);
    if (frame != nullptr && frame->unsent < frame->fragments)
      return FragmentPlace{{frame->number, frame->unsent}, frame->frame_bytes, frame->fragment_bytes};
  }
  return std::nullopt;
}

void FragmentQueue::taken(FragmentName name) {
  auto* frame = find(name.frame);
  if (frame == nullptr || name.index >= frame->fragments) return;
  if (name.index == frame->unsent) {
    ++frame->unsent;
    lost_in_a_row_ = 0;
  } else if (in(frame->lost, name.index)) {
    remove(frame->lost, name.index);
    --frame->lost_count;
    --lost_total_;
    ++lost_in_a_row_;
    turn_ = {name.frame, name.index + 1};
  }
}

bool FragmentQueue::arrived(FragmentName name) {
  auto* frame = find(name.frame);
  if (frame == nullptr || name.index >= frame->unsent || in(frame->arrived, name.index)) return false;
  add(frame->arrived, name.index);
  if (in(frame->lost, name.index)) {
    remove(frame->lost, name.index);
    --frame->lost_count;
    --lost_total_;
  }
  if (++frame->arrived_count < frame->fragments) return false;
  frame->open = false;
  open_bytes_ -= frame->frame_bytes;
  while (oldest_ != next_frame_ && !frames_[oldest_ % fragment_frames_max].open) ++oldest_;
  return true;
}

void FragmentQueue::lost(FragmentName name) {
  auto* frame = find(name.frame);
  if (frame == nullptr || name.index >= frame->unsent || in(frame->arrived, name.index) || in(frame->lost, name.index)) return;
  add(frame->lost, name.index);
  ++lost_total_;
  ++frame->lost_count;
}

}  // namespace unisono

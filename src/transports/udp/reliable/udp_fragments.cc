#include "transports/udp/reliable/udp_fragments.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace unisono {

void write_position(const FragmentPosition& position, DatagramHeader& header) {
  header.kind = DatagramKind::fragment;
  header.op = position.name.frame;
  header.packet_index = position.name.index;
  header.deadline_us = position.frame_bytes;
  header.slice = static_cast<uint16_t>(position.fragment_bytes);
  header.payload_bytes = static_cast<uint16_t>(position.bytes());
}

bool read_position(const DatagramHeader& header, FragmentPosition& position) {
  position = {.name{header.op, header.packet_index}, .frame_bytes = header.deadline_us, .fragment_bytes = header.slice};
  if (position.frame_bytes < sizeof(FrameHeader) || position.frame_bytes > frame_bytes_max) return false;
  if (position.fragment_bytes < fragment_bytes_min || position.fragment_bytes > fragment_bytes_max) return false;
  return position.name.index < position.fragments() && header.payload_bytes == position.bytes();
}

FragmentParts fragment_parts(const FragmentPosition& position, const FrameHeader& header, std::span<const std::byte> payload) {
  const size_t begin = position.offset(), end = begin + position.bytes();
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

std::vector<uint64_t> recut_bits(const std::vector<uint64_t>& bits, uint32_t frame_bytes, uint32_t from, uint32_t to) {
  const uint32_t fragments = (frame_bytes + to - 1) / to;
  std::vector<uint64_t> result((fragments + 63) / 64, 0);
  for (uint32_t index = 0; index < fragments; ++index) {
    bool whole = true;
    const uint32_t last = (std::min((index + 1) * to, frame_bytes) - 1) / from;
    for (uint32_t old = index * to / from; whole && old <= last; ++old) whole = in(bits, old);
    if (whole) add(result, index);
  }
  return result;
}

uint32_t count_bits(const std::vector<uint64_t>& bits) {
  uint32_t count = 0;
  for (const auto word : bits) count += static_cast<uint32_t>(std::popcount(word));
  return count;
}

FragmentQueue::FragmentQueue(uint32_t recut_bytes) : recut_bytes_(recut_bytes) {}

uint32_t FragmentQueue::push(uint32_t frame_bytes, uint32_t fragment_bytes) {
  UNISONO_CHECK(!full() && frame_bytes >= sizeof(FrameHeader) && frame_bytes <= frame_bytes_max &&
                fragment_bytes >= fragment_bytes_min && fragment_bytes <= fragment_bytes_max);
  frames_.resize(fragment_frames_max);  // with the first frame: most links of a large group carry none
  const uint32_t number = next_frame_++;
  auto& frame = frames_[number % fragment_frames_max];
  frame.number = number;
  frame.frame_bytes = frame_bytes;
  frame.fragment_bytes = fragment_bytes;
  frame.fragments = FragmentPosition{.name{}, .frame_bytes = frame_bytes, .fragment_bytes = fragment_bytes}.fragments();
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

std::optional<FragmentPosition> FragmentQueue::next() {
  const auto unsent = next_unsent();
  if (lost_total_ == 0 || (unsent && lost_in_a_row_ >= lost_in_a_row_max)) return unsent;
  return next_lost();
}

// Returns the next lost fragment in turn. Call this only if some fragment is lost.
FragmentPosition FragmentQueue::next_lost() {
  for (;; search_position_ = {search_position_.frame + 1, 0}) {
    if (search_position_.frame - oldest_ >= next_frame_ - oldest_) search_position_ = {oldest_, 0};
    const auto* frame = find(search_position_.frame);
    if (frame == nullptr || frame->lost_count == 0 || search_position_.index >= frame->fragments) continue;
    uint64_t bits = frame->lost[search_position_.index / 64] & (~uint64_t{0} << (search_position_.index % 64));
    size_t word = search_position_.index / 64;
    while (bits == 0 && ++word < frame->lost.size()) bits = frame->lost[word];
    if (bits == 0) continue;
    search_position_.index = static_cast<uint32_t>(word * 64 + static_cast<size_t>(std::countr_zero(bits)));
    return {search_position_, frame->frame_bytes, frame->fragment_bytes};
  }
}

std::optional<FragmentPosition> FragmentQueue::next_unsent() {
  for (; unsent_frame_ != next_frame_; ++unsent_frame_) {
    const auto* frame = find(unsent_frame_);
    if (frame != nullptr && frame->unsent < frame->fragments)
      return FragmentPosition{{frame->number, frame->unsent}, frame->frame_bytes, frame->fragment_bytes};
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
    search_position_ = {name.frame, name.index + 1};
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

void FragmentQueue::recut(Frame& frame) const {
  const auto from = frame.fragment_bytes, to = recut_bytes_;
  const auto sent_bytes = std::min(frame.unsent * from, frame.frame_bytes);
  frame.arrived = recut_bits(frame.arrived, frame.frame_bytes, from, to);
  frame.arrived_count = count_bits(frame.arrived);
  frame.fragment_bytes = to;
  frame.fragments = (frame.frame_bytes + to - 1) / to;
  frame.unsent = (sent_bytes + to - 1) / to;
}

void FragmentQueue::recut() {
  lost_total_ = 0;
  search_position_ = {oldest_, 0};
  for (auto& frame : frames_) {
    if (!frame.open) continue;
    if (frame.fragment_bytes > recut_bytes_) recut(frame);
    frame.lost.assign((frame.fragments + 63) / 64, 0);
    for (uint32_t index = 0; index < frame.unsent; ++index) {
      if (!in(frame.arrived, index)) add(frame.lost, index);
    }
    frame.lost_count = count_bits(frame.lost);
    lost_total_ += frame.lost_count;
  }
}

}  // namespace unisono

#include "transports/udp/udp_frames.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace unisono {

UdpFrames::UdpFrames(PayloadPool& pool, uint32_t recut_bytes) : pool_(pool), queue_(recut_bytes) {}

UdpFrames::~UdpFrames() {
  std::vector<uint64_t> unreported;
  clear(unreported);
}

bool UdpFrames::copy(Frame& frame) {
  const auto block = pool_.take(PayloadPool::no_owner, frame.payload.size());
  if (!block) return false;
  std::memcpy(block.data, frame.payload.data(), frame.payload.size());
  frame.payload = {block.data, frame.payload.size()};
  frame.block = block.handle;
  frame.notify = false;
  return true;
}

bool UdpFrames::push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id) {
  Frame frame{.header = header, .payload = payload, .id = id, .block = 0, .notify = !payload.empty(), .open = true};
  if (!payload.empty() && payload.size() <= copied_bytes_max) (void)copy(frame);
  if (first_ == waiting_.size()) {
    waiting_.clear();
    first_ = 0;
  } else if (waiting_.size() == waiting_.capacity() && first_ >= waiting_.size() / 2) {
    waiting_.erase(waiting_.begin(), waiting_.begin() + static_cast<ptrdiff_t>(first_));
    first_ = 0;
  }
  waiting_.push_back(frame);
  return !frame.notify;
}

void UdpFrames::release(Frame& frame, std::vector<uint64_t>* sent) {
  if (frame.notify && sent != nullptr) sent->push_back(frame.id);
  if (frame.block != 0) pool_.give(frame.block);
  frame = {};
}

bool UdpFrames::cancel(uint64_t match, uint64_t mask) {
  const auto matches = [&](const Frame& frame) { return frame.notify && (frame.id & mask) == match; };
  waiting_.erase(std::remove_if(waiting_.begin() + static_cast<ptrdiff_t>(first_), waiting_.end(), matches), waiting_.end());
  bool intact = true;
  for (auto& frame : cut_) {
    if (!frame.open || !matches(frame) || copy(frame)) continue;
    frame.notify = false;
    intact = false;
  }
  return intact;
}

bool UdpFrames::detach_senders(std::vector<uint64_t>& sent) {
  size_t kept = first_;
  for (size_t i = first_; i < waiting_.size(); ++i) {
    if (waiting_[i].notify) release(waiting_[i], &sent);
    else waiting_[kept++] = waiting_[i];
  }
  waiting_.resize(kept);
  bool intact = true;
  for (auto& frame : cut_) {
    if (!frame.open || !frame.notify) continue;
    sent.push_back(frame.id);
    if (copy(frame)) continue;
    frame.notify = false;
    intact = false;
  }
  return intact;
}

void UdpFrames::clear(std::vector<uint64_t>& sent) {
  for (auto& frame : cut_) {
    if (frame.open) release(frame, &sent);
  }
  for (size_t i = first_; i < waiting_.size(); ++i) release(waiting_[i], &sent);
  waiting_.clear();
  first_ = begun_ = 0;
}

std::optional<FragmentPosition> UdpFrames::next(uint32_t fragment_bytes) {
  // Begin a waiting frame even if fragments of earlier frames were lost, because lost fragments must not delay new frames.
  if (waiting() == 0 || queue_.full() || queue_.has_unsent()) return queue_.next();
  auto& frame = waiting_[first_++];
  const auto bytes = static_cast<uint32_t>(sizeof(FrameHeader) + frame.payload.size());
  const auto number = queue_.push(bytes, fragment_bytes);
  cut_.resize(fragment_frames_max);  // with the first frame: most links of a large group carry none
  cut_[number % fragment_frames_max] = frame;
  ++begun_;
  ++sent_frames_;
  sent_bytes_ += bytes;
  return queue_.next();
}

FragmentParts UdpFrames::parts(const FragmentPosition& position) const {
  const auto& frame = cut_[position.name.frame % fragment_frames_max];
  UNISONO_CHECK(frame.open);
  return fragment_parts(position, frame.header, frame.payload);
}

void UdpFrames::arrived(FragmentName name, std::vector<uint64_t>& sent) {
  if (!queue_.arrived(name)) return;
  release(cut_[name.frame % fragment_frames_max], &sent);
  --begun_;
}

}  // namespace unisono

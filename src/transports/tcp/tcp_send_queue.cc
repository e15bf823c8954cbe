#include "transports/tcp/tcp_send_queue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace unisono {

void TcpSendQueue::Frame::advance(size_t bytes) {
  const size_t from_header = std::min<size_t>(bytes, header_left);
  header_left -= static_cast<uint32_t>(from_header);
  bytes -= from_header;
  UNISONO_CHECK(bytes <= payload_left);
  if (bytes > 0) payload += bytes;
  payload_left -= bytes;
}

int TcpSendQueue::parts_of(const Frame& frame, iovec* parts) {
  int count = 0;
  if (frame.header_left > 0) {
    const auto* end = reinterpret_cast<const std::byte*>(&frame.header + 1);
    parts[count++] = {const_cast<std::byte*>(end - frame.header_left), frame.header_left};
  }
  if (frame.payload_left > 0) parts[count++] = {const_cast<std::byte*>(frame.payload), frame.payload_left};
  return count;
}

TcpSendQueue::TcpSendQueue(PayloadPool& pool, size_t reserve)
    : pool_(pool), ring_(std::bit_ceil(std::max<size_t>(reserve, 4))) {}

TcpSendQueue::~TcpSendQueue() {
  std::vector<uint64_t> unreported;
  clear(unreported);
}

bool TcpSendQueue::copy_payload(Frame& frame) {
  const auto block = pool_.take(PayloadPool::no_owner, frame.payload_left);
  if (!block) return false;
  std::memcpy(block.data, frame.payload, frame.payload_left);
  frame.payload = block.data;
  frame.block = block.handle;
  return true;
}

bool TcpSendQueue::push(Frame frame) {
  frame.notify = frame.payload_left > 0 && (frame.payload_left > copied_bytes_max || !copy_payload(frame));
  if (count_ == ring_.size()) grow();
  at(count_) = frame;
  ++count_;
  bytes_ += frame.left();
  return !frame.notify;
}

void TcpSendQueue::grow() {
  std::vector<Frame> larger(ring_.size() * 2);
  for (size_t i = 0; i < count_; ++i) larger[i] = at(i);
  ring_ = std::move(larger);
  first_ = 0;
}

int TcpSendQueue::gather(iovec* parts, size_t& bytes) const {
  int filled = 0;
  bytes = 0;
  for (size_t i = 0; i < count_ && filled + 2 <= gather_max && bytes < gather_bytes_max; ++i) {
    filled += parts_of(at(i), parts + filled);
    bytes += at(i).left();
  }
  return filled;
}

size_t TcpSendQueue::wrote(size_t bytes, std::vector<uint64_t>& sent) {
  size_t finished = 0;
  bytes_ -= bytes;
  while (count_ > 0) {
    auto& frame = at(0);
    const size_t step = std::min(bytes, frame.left());
    frame.advance(step);
    bytes -= step;
    if (frame.left() > 0) break;
    if (frame.notify) sent.push_back(frame.id);
    if (frame.block != 0) pool_.give(frame.block);
    first_ = (first_ + 1) & (ring_.size() - 1);
    --count_;
    ++finished;
  }
  return finished;
}

bool TcpSendQueue::cancel(uint64_t match, uint64_t mask) {
  size_t kept = 0;
  bool intact = true;
  for (size_t i = 0; i < count_; ++i) {
    auto frame = at(i);
    if (frame.notify && (frame.id & mask) == match) {
      const bool untouched = frame.header_left == sizeof(FrameHeader);
      if (untouched) {
        bytes_ -= frame.left();
        continue;
      }
      frame.notify = false;
      if (!copy_payload(frame)) {
        // The stream must end now, because the memory of the payload must not be read any more.
        bytes_ -= frame.payload_left;
        frame.payload_left = 0;
        intact = false;
      }
    }
    at(kept++) = frame;
  }
  count_ = kept;
  return intact;
}

Bytes TcpSendQueue::unsent_bytes(bool memory_valid) const {
  Bytes unsent;
  for (size_t i = 0; i < count_; ++i) {
    const auto& frame = at(i);
    const bool in_own_memory = frame.block != 0 || frame.payload_left == 0;
    const bool begun = frame.header_left < sizeof(FrameHeader);
    if (!in_own_memory && begun && !memory_valid) return {};
    if (!in_own_memory && !begun) continue;
    iovec parts[2];
    const int count = parts_of(frame, parts);
    for (int part = 0; part < count; ++part) {
      const auto* bytes = static_cast<const std::byte*>(parts[part].iov_base);
      unsent.insert(unsent.end(), bytes, bytes + parts[part].iov_len);
    }
  }
  return unsent;
}

void TcpSendQueue::clear(std::vector<uint64_t>& sent) {
  for (size_t i = 0; i < count_; ++i) {
    if (at(i).notify) sent.push_back(at(i).id);
    if (at(i).block != 0) pool_.give(at(i).block);
  }
  first_ = count_ = bytes_ = 0;
}

}  // namespace unisono

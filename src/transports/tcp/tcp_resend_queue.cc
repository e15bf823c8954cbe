#include "transports/tcp/tcp_resend_queue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {
namespace {

// The payload of frames of kind `nothing`.
constexpr std::array<std::byte, 64u << 10> nothing_bytes{};

}  // namespace

TcpResendQueue::TcpResendQueue(PayloadPool& pool, ResendMemory& memory, size_t reserve)
    : pool_(pool), memory_(memory), ring_(std::bit_ceil(std::max<size_t>(reserve, 4))) {}

TcpResendQueue::~TcpResendQueue() {
  std::vector<uint64_t> unreported;
  clear(unreported);
}

// Queueing ------------------------------------------------------------------------------------------------------------

void TcpResendQueue::grow() {
  std::vector<Frame> larger(ring_.size() * 2);
  for (size_t i = 0; i < count_; ++i) larger[i] = at(i);
  ring_ = std::move(larger);
  first_ = 0;
}

void TcpResendQueue::insert(size_t index, const Frame& frame) {
  if (count_ == ring_.size()) grow();
  for (size_t i = count_; i > index; --i) at(i) = at(i - 1);
  at(index) = frame;
  ++count_;
  queued_ += frame.bytes();
  unconfirmed_ += frame.confirms_only() ? 0 : 1;
  lent_ += frame.notify ? 1 : 0;
}

void TcpResendQueue::seal(Frame& frame, uint64_t received) {
  frame.header.confirmed = static_cast<uint32_t>(received);
  seal_frame(frame.header);
  if (frame.joined) std::memcpy(const_cast<std::byte*>(frame.kept) - sizeof frame.header, &frame.header, sizeof frame.header);
}

bool TcpResendQueue::push(const FrameHeader& header, std::span<const std::byte> payload, uint64_t id, uint64_t received) {
  Frame frame{.header = header, .kept = payload.data(), .id = id};
  frame.header.payload_bytes = static_cast<uint32_t>(payload.size());
  frame.notify = !payload.empty();
  if (frame.notify && payload.size() <= copied_bytes_max) {
    if (copy(frame, 0, true, true)) frame.notify = false;
    else wants_confirm_ = true;
  }
  if (wants_confirm_) frame.header.flags |= frame_flag_confirm_now;
  wants_confirm_ = false;
  seal(frame, received);
  insert(count_, frame);
  return !frame.notify;
}

bool TcpResendQueue::push_confirm(uint64_t received) {
  const size_t index = begun(next_) ? next_ + 1 : next_;
  if (index >= unconfirmed_frames_max + confirming_frames_max) return false;
  const bool waits = index < count_ && at(index).confirms_only();
  Frame frame{.header = {.kind = FrameKind::confirm}};
  if (waits) frame = at(index);
  if (wants_confirm_) frame.header.flags |= frame_flag_confirm_now;
  wants_confirm_ = false;
  seal(frame, received);
  if (waits) at(index) = frame;
  else insert(index, frame);
  return true;
}

// Writing -------------------------------------------------------------------------------------------------------------

bool TcpResendQueue::may_begin(size_t index, uint64_t start) const {
  if (at(index).confirms_only()) return index < unconfirmed_frames_max + confirming_frames_max;
  return index < unconfirmed_frames_max && start - confirmed_ < unconfirmed_bytes_max;
}

int TcpResendQueue::parts_of(const Frame& frame, uint64_t offset, iovec* parts, size_t& bytes) const {
  if (frame.joined) {
    parts[0] = {const_cast<std::byte*>(frame.kept) - sizeof(FrameHeader) + offset, frame.bytes() - offset};
    bytes += parts[0].iov_len;
    return 1;
  }
  int count = 0;
  if (offset < sizeof(FrameHeader)) {
    const auto* header = reinterpret_cast<const std::byte*>(&frame.header);
    parts[count++] = {const_cast<std::byte*>(header + offset), sizeof(FrameHeader) - offset};
    offset = sizeof(FrameHeader);
  }
  const size_t from = offset - sizeof(FrameHeader);
  size_t left = frame.payload_bytes() - from;
  if (left > 0) {
    const std::byte* data = nothing_bytes.data();
    if (frame.header.kind == FrameKind::nothing) {
      left = std::min(left, nothing_bytes.size());
    } else {
      UNISONO_CHECK(from >= frame.kept_from);
      data = frame.kept + (from - frame.kept_from);
    }
    parts[count++] = {const_cast<std::byte*>(data), left};
  }
  for (int i = 0; i < count; ++i) bytes += parts[i].iov_len;
  return count;
}

int TcpResendQueue::gather(iovec* parts, size_t& bytes) const {
  int filled = 0;
  bytes = 0;
  uint64_t start = next_start_;
  for (size_t i = next_; i < count_ && filled + 2 <= gather_max && bytes < gather_bytes_max; ++i) {
    if (!begun(i) && !may_begin(i, start)) break;
    uint64_t offset = i == next_ ? written_ - start : 0;
    const size_t before = bytes;
    filled += parts_of(at(i), offset, parts + filled, bytes);
    start += at(i).bytes();
    if (bytes - before < at(i).bytes() - offset) break;  // more than one part holds
  }
  return filled;
}

size_t TcpResendQueue::wrote(size_t bytes) {
  size_t finished = 0;
  written_ += bytes;
  while (next_ < count_ && written_ >= next_start_ + at(next_).bytes()) {
    auto& frame = at(next_);
    next_start_ += frame.bytes();
    held_ += frame.notify ? 1 : 0;
    if (frame.uncounted) drop_copy(frame);
    ++next_;
    if (frame.confirms_only()) confirming_bytes_ += frame.bytes();
    else ++finished;
  }
  return finished;
}

// Leaving the queue ---------------------------------------------------------------------------------------------------

void TcpResendQueue::drop_copy(Frame& frame) {
  if (frame.block == 0) return;
  const size_t room = frame.joined ? sizeof(FrameHeader) : 0;
  if (!frame.uncounted) memory_.give(PayloadPool::block_bytes(room + frame.payload_bytes() - frame.kept_from));
  pool_.give(frame.block);
  frame.block = 0;
  frame.kept = nullptr;
  frame.kept_from = frame.payload_bytes();
  frame.uncounted = frame.joined = false;
}

// Reports a written frame's payload as sent. Its bytes must be in a copy, or must not be needed again.
void TcpResendQueue::give_back(Frame& frame, std::vector<uint64_t>& sent) {
  sent.push_back(frame.id);
  early_ -= frame.early ? 1 : 0;
  frame.notify = frame.early = false;
  --held_;
  --lent_;
  if (frame.block != 0) return;
  frame.kept = nullptr;
  frame.kept_from = frame.payload_bytes();
}

bool TcpResendQueue::confirm(uint32_t low, std::vector<uint64_t>& sent) {
  const uint64_t position = confirmed_ + static_cast<uint32_t>(low - static_cast<uint32_t>(confirmed_));
  if (position == confirmed_ || position > written_) return false;
  confirm_to(position, sent);
  return true;
}

void TcpResendQueue::confirm_to(uint64_t position, std::vector<uint64_t>& sent) {
  confirmed_ = position;
  while (count_ > 0 && base_ + at(0).bytes() <= position) {
    auto& frame = at(0);
    if (frame.notify) give_back(frame, sent);
    drop_copy(frame);
    unconfirmed_ -= frame.confirms_only() ? 0 : 1;
    base_ += frame.bytes();
    first_ = (first_ + 1) & (ring_.size() - 1);
    --count_;
    --next_;
  }
}

void TcpResendQueue::acknowledged(uint64_t position, std::vector<uint64_t>& sent) {
  acknowledged_ = std::max(acknowledged_, std::min(position, written_));
  uint64_t end = base_;
  for (size_t i = 0; i < next_ && held_ > 0; ++i) {
    auto& frame = at(i);
    end += frame.bytes();
    if (end > acknowledged_) break;
    if (frame.notify) give_back(frame, sent);
  }
}

// Giving memory back early --------------------------------------------------------------------------------------------

// Returns how many payload bytes of the frame lie before `position`.
uint32_t TcpResendQueue::payload_bytes_before(uint64_t position, const Frame& frame, uint64_t start) const {
  const uint64_t payload = start + sizeof(FrameHeader);
  return position <= payload ? 0 : static_cast<uint32_t>(std::min<uint64_t>(position - payload, frame.payload_bytes()));
}

// Copies the payload from byte `from` on. joined: leaves room for the header before it. Returns false if there is no memory for
// it.
bool TcpResendQueue::copy(Frame& frame, uint32_t from, bool counted, bool joined) {
  const size_t room = joined ? sizeof(FrameHeader) : 0, bytes = frame.payload_bytes() - from;
  if (bytes > 0) {
    const size_t block_bytes = PayloadPool::block_bytes(room + bytes);
    if (counted && !memory_.take(block_bytes)) return false;
    const auto block = pool_.take(PayloadPool::no_owner, room + bytes);
    if (!block) {
      if (counted) memory_.give(block_bytes);
      return false;
    }
    std::memcpy(block.data + room, frame.kept + (from - frame.kept_from), bytes);
    frame.block = block.handle;
    frame.kept = block.data + room;
    frame.uncounted = !counted;
    frame.joined = joined;
  } else {
    frame.kept = nullptr;
  }
  frame.kept_from = from;
  return true;
}

// Copies those bytes of the payload that may have to be written again. Returns false if there is no memory for them.
bool TcpResendQueue::keep(Frame& frame, uint64_t start) {
  if (copy(frame, payload_bytes_before(known_to_arrive(), frame, start), true)) return true;
  wants_confirm_ |= !frame.asked;
  frame.asked = true;
  return false;
}

void TcpResendQueue::release_early(uint64_t match, uint64_t mask, std::vector<uint64_t>& sent) {
  for (size_t i = 0; i < count_; ++i) {
    auto& frame = at(i);
    if (!frame.notify || frame.early || (frame.id & mask) != match) continue;
    frame.early = true;
    ++early_;
  }
  copy_early(sent);
}

void TcpResendQueue::copy_early(std::vector<uint64_t>& sent) {
  uint64_t start = base_;
  for (size_t i = 0; i < next_ && early_ > 0; ++i) {
    auto& frame = at(i);
    if (frame.early && keep(frame, start)) give_back(frame, sent);
    start += frame.bytes();
  }
}

// Withdraws a begun frame. If a part of its payload is still to be written on this connection, copies that part: the peer
// counts on it. This copy does not count, because a stream has at most one. Returns false if there is no memory for it.
bool TcpResendQueue::withdraw(Frame& frame, uint64_t start) {
  frame.withdrawn = true;
  const uint32_t from = payload_bytes_before(written_, frame, start);
  if (from < frame.payload_bytes() && copy(frame, from, false)) return true;
  frame.kept = nullptr;
  frame.kept_from = frame.payload_bytes();
  return from == frame.payload_bytes();
}

bool TcpResendQueue::cancel(uint64_t match, uint64_t mask, std::vector<uint64_t>* sent) {
  size_t kept = 0;
  bool intact = true;
  uint64_t start = base_;
  for (size_t i = 0; i < count_; ++i) {
    auto& frame = at(i);
    const uint64_t frame_start = start;
    start += frame.bytes();
    if (frame.notify && (frame.id & mask) == match) {
      early_ -= frame.early ? 1 : 0;
      --lent_;
      if (sent != nullptr) sent->push_back(frame.id);
      if (!begun(i)) {
        wants_confirm_ |= (frame.header.flags & frame_flag_confirm_now) != 0;
        --unconfirmed_;
        queued_ -= frame.bytes();
        continue;
      }
      if (i < next_) --held_;
      if (!keep(frame, frame_start) && !withdraw(frame, frame_start)) intact = false;
      frame.notify = frame.early = false;
    }
    if (kept != i) at(kept) = frame;
    ++kept;
  }
  count_ = kept;
  return intact;
}

// A new connection ----------------------------------------------------------------------------------------------------

Status TcpResendQueue::rewind(uint64_t position, uint64_t received, std::vector<uint64_t>& sent) {
  if (position < confirmed_ || position > written_) {
    return Status(Code::corrupt,
                  concat("the peer says that it has read ", position, " bytes, which is not in ", confirmed_, " … ", written_));
  }
  confirm_to(position, sent);
  written_ = position;
  acknowledged_ = std::min(acknowledged_, position);
  next_ = 0;
  next_start_ = base_;
  held_ = 0;
  uint64_t start = base_;
  for (size_t i = 0; i < count_; ++i) {
    auto& frame = at(i);
    if (start >= position) {
      if (frame.withdrawn) {
        drop_copy(frame);
        frame.withdrawn = false;
        frame.header.kind = FrameKind::nothing;
        frame.header.flags &= frame_flag_confirm_now;
        frame.header.payload_checksum = 0;
      }
      seal(frame, received);
    }
    const uint32_t first = payload_bytes_before(position, frame, start);
    if (frame.header.kind != FrameKind::nothing && first < frame.kept_from) {
      return Status(Code::peer_lost, concat(frame.kept_from - first, " bytes cannot be sent again: a frame at position ", start,
                                            " was given back before the peer had read it, and the peer stopped at ", position));
    }
    start += frame.bytes();
  }
  return {};
}

void TcpResendQueue::clear(std::vector<uint64_t>& sent) {
  for (size_t i = 0; i < count_; ++i) {
    if (at(i).notify) sent.push_back(at(i).id);
    drop_copy(at(i));
  }
  first_ = count_ = next_ = 0;
  next_start_ = base_ = confirmed_ = written_ = queued_ = acknowledged_ = 0;
  unconfirmed_ = lent_ = held_ = early_ = 0;
  wants_confirm_ = false;
}

}  // namespace unisono

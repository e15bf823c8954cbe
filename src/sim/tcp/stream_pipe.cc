#include "sim/tcp/stream_pipe.h"

#include <algorithm>
#include <cstring>

namespace unisono::sim {

size_t StreamPipe::append(const iovec* parts, int count, size_t bytes_max, Random& random) {
  size_t taken = 0;
  for (int i = 0; i < count && taken < bytes_max; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, bytes_max - taken);
    const auto* data = static_cast<const std::byte*>(parts[i].iov_base);
    bytes_.insert(bytes_.end(), data, data + bytes);
    taken += bytes;
  }
  for (uint64_t at = written_; record_bytes_max_ > 0 && at < written_ + taken; record_ends_.push_back(at))
    at += std::min<uint64_t>(1 + random.below(record_bytes_max_), written_ + taken - at);
  written_ += taken;
  return taken;
}

bool StreamPipe::alter(Random& random) {
  const size_t count = bytes_.size() - consumed_;
  if (count == 0) return false;
  const auto at = consumed_ + random.below(count);
  if (random.chance(0.5)) {
    bytes_[at] ^= static_cast<std::byte>(1u << random.below(8));
    return true;
  }
  const auto from = consumed_ + random.below(count);
  const size_t bytes = std::min(bytes_.size() - std::max(at, from), 1 + random.below(200));
  std::memmove(bytes_.data() + at, bytes_.data() + from, bytes);
  return true;
}

// Returns the end of the last record that lies wholly before `position`.
uint64_t StreamPipe::whole_records(uint64_t position) const {
  if (record_bytes_max_ == 0 || position >= written_) return std::min(position, written_);
  const auto after = std::upper_bound(record_ends_.begin(), record_ends_.end(), position);
  return after == record_ends_.begin() ? 0 : *(after - 1);
}

void StreamPipe::acknowledge(uint64_t position) { acknowledged_ = std::max(acknowledged_, position); }

uint64_t StreamPipe::unacknowledged_bytes() const { return written_ - whole_records(acknowledged_); }

bool StreamPipe::arrive(uint64_t from, uint64_t to) {
  if (from > received_ || to <= received_) return false;
  received_ = to;
  return true;
}

bool StreamPipe::has_unread() const { return std::min(received_, written_) > read_; }

size_t StreamPipe::readable() const {
  const uint64_t whole = whole_records(received_);
  return whole > read_ ? static_cast<size_t>(whole - read_) : 0;
}

size_t StreamPipe::copy(const iovec* parts, int count, size_t bytes_max) const {
  const size_t limit = std::min(bytes_max, readable());
  size_t copied = 0;
  for (int i = 0; i < count && copied < limit; ++i) {
    const size_t bytes = std::min(parts[i].iov_len, limit - copied);
    if (bytes > 0) std::memcpy(parts[i].iov_base, bytes_.data() + consumed_ + copied, bytes);
    copied += bytes;
  }
  return copied;
}

void StreamPipe::drop(size_t bytes) {
  consumed_ += bytes;
  read_ += bytes;
  if (consumed_ * 2 > bytes_.size()) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(consumed_));
    consumed_ = 0;
  }
}

}  // namespace unisono::sim

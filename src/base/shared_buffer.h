// Bytes that several owners hold at once, and that nobody changes once a second one has them: a message, or a chunk's values
// inside of one. Made uninitialised, because whoever makes one fills all of it; never grows. A slice holds the memory of the
// whole.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "base/bytes.h"

namespace unisono {

class SharedBuffer {
 public:
  SharedBuffer() = default;
  static SharedBuffer make(size_t bytes) {
    SharedBuffer buffer;
    buffer.data_ = std::make_shared_for_overwrite<std::byte[]>(bytes);
    buffer.bytes_ = bytes;
    return buffer;
  }
  static SharedBuffer copy(ByteView bytes) {
    auto buffer = make(bytes.size());
    if (!bytes.empty()) std::memcpy(buffer.data(), bytes.data(), bytes.size());
    return buffer;
  }

  // from + bytes <= size()
  SharedBuffer slice(size_t from, size_t bytes) const {
    SharedBuffer part;
    part.data_ = std::shared_ptr<std::byte[]>(data_, data_.get() + from);
    part.bytes_ = bytes;
    return part;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return bytes_; }
  ByteView view() const { return {data_.get(), bytes_}; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  std::shared_ptr<std::byte[]> data_;
  size_t bytes_ = 0;
};

// A message whose end may lie in other memory than its beginning; it arrives in one piece.
struct SharedMessage {
  SharedMessage(SharedBuffer whole) : head(std::move(whole)) {}  // implicit: most are in one piece
  SharedMessage(SharedBuffer beginning, SharedBuffer end) : head(std::move(beginning)), rest(std::move(end)) {}

  size_t size() const { return head.size() + rest.size(); }
  // In one piece; without a rest nothing is copied.
  SharedBuffer whole() const {
    if (rest.size() == 0) return head;
    auto all = SharedBuffer::make(size());
    std::memcpy(all.data(), head.data(), head.size());
    std::memcpy(all.data() + head.size(), rest.data(), rest.size());
    return all;
  }

  SharedBuffer head, rest;
};

}  // namespace unisono

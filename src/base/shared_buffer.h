// Bytes with several owners: a message, or the values of a chunk inside a message. Once there is a second owner, the bytes must
// not change. The size is fixed. The memory is not initialised, because the code that makes the buffer writes all of it. A
// slice of the buffer keeps the whole memory alive.
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

  // Requires from + bytes <= size().
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

// A message that consists of one or two parts. The parts may be in different memory. The receiver gets the message in one
// piece.
struct SharedMessage {
  SharedMessage(SharedBuffer whole) : head(std::move(whole)) {}  // implicit, because most messages are in one piece
  SharedMessage(SharedBuffer beginning, SharedBuffer end) : head(std::move(beginning)), rest(std::move(end)) {}

  size_t size() const { return head.size() + rest.size(); }
  // Returns the message in one piece. The bytes are copied only if there is a second part.
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

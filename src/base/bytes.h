// Reads and writes little-endian fields. The reader never reads past the end of its input. The writer appends to a vector of
// bytes.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace unisono {

static_assert(std::endian::native == std::endian::little, "the wire format is written in place: little-endian hosts only");

using Bytes = std::vector<std::byte>;
using ByteView = std::span<const std::byte>;

// Reads fields in order. After the first field that does not fit, ok() is false and every read returns zero or empty.
class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  template <typename T>
  T read() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    if (take(sizeof(T))) std::memcpy(&value, bytes_.data() + at_ - sizeof(T), sizeof(T));
    return value;
  }
  // Reads a string: its length as a u32, then the characters. A length above `limit` counts as a field that does not fit.
  std::string read_string(size_t limit) {
    const auto size = read<uint32_t>();
    if (size > limit || !take(size)) {
      ok_ = false;
      return {};
    }
    return {reinterpret_cast<const char*>(bytes_.data()) + at_ - size, size};
  }
  bool ok() const { return ok_; }
  size_t left() const { return bytes_.size() - at_; }
  // Returns whether all fields fitted and no bytes are left over.
  bool done() const { return ok_ && left() == 0; }

 private:
  bool take(size_t size) {
    if (!ok_ || left() < size) return ok_ = false;
    at_ += size;
    return true;
  }
  ByteView bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

class ByteWriter {
 public:
  template <typename T>
  ByteWriter& write(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
    return *this;
  }
  ByteWriter& write_string(std::string_view text) {
    write(static_cast<uint32_t>(text.size()));
    const auto* data = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), data, data + text.size());
    return *this;
  }
  Bytes take() && { return std::move(bytes_); }
  ByteView view() const { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace unisono

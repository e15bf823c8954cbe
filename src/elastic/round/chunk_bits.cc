#include "elastic/round/chunk_bits.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {

size_t ChunkBits::count() const {
  size_t count = 0;
  for (const auto word : words_) count += static_cast<size_t>(std::popcount(word));
  return count;
}

bool ChunkBits::none() const {
  return std::all_of(words_.begin(), words_.end(), [](uint64_t word) { return word == 0; });
}

ChunkBits& ChunkBits::operator|=(const ChunkBits& other) {
  UNISONO_CHECK(size_ == other.size_);
  for (size_t i = 0; i < words_.size(); ++i) words_[i] |= other.words_[i];
  return *this;
}

ChunkBits& ChunkBits::operator&=(const ChunkBits& other) {
  UNISONO_CHECK(size_ == other.size_);
  for (size_t i = 0; i < words_.size(); ++i) words_[i] &= other.words_[i];
  return *this;
}

void ChunkBits::write(ByteWriter& writer) const {
  writer.write(static_cast<uint32_t>(size_));
  for (size_t i = 0; i < (size_ + 7) / 8; ++i) writer.write(static_cast<uint8_t>(words_[i / 8] >> (i % 8 * 8)));
}

Status ChunkBits::read(ByteReader& reader, size_t size) {
  const auto count = reader.read<uint32_t>();
  const size_t bytes = (size + 7) / 8;
  if (!reader.ok() || count != size || reader.left() < bytes) {
    return {Code::corrupt, concat("bits of ", count, " chunks in ", reader.left(), " bytes, of ", size, " are expected")};
  }
  ChunkBits bits(size);
  for (size_t i = 0; i < bytes; ++i) bits.words_[i / 8] |= uint64_t{reader.read<uint8_t>()} << (i % 8 * 8);
  if (size % 64 != 0 && bits.words_.back() >> (size % 64) != 0)
    return {Code::corrupt, "bits of chunks: one past the last is set"};
  *this = std::move(bits);
  return {};
}

}  // namespace unisono

#include "wire/checksum.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace unisono {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}
constexpr auto table = make_table();

#if defined(__x86_64__)
// The instruction takes a word in each cycle and has its result two cycles later, so three parts of a block go side by side. What the first two are worth
// behind the zeros that follow them is looked up: a checksum is linear. 448 bytes: three of them are most of a packet of Ethernet.
constexpr size_t part_bytes = 448;
using Shift = std::array<std::array<uint32_t, 256>, 4>;

constexpr Shift make_shift() {
  std::array<uint32_t, 32> of_bits{};
  for (uint32_t bit = 0; bit < 32; ++bit) {
    uint32_t crc = uint32_t{1} << bit;
    for (size_t i = 0; i < part_bytes; ++i) crc = (crc >> 8) ^ table[crc & 0xFF];
    of_bits[bit] = crc;
  }
  Shift shift{};
  for (uint32_t byte = 0; byte < 4; ++byte) {
    for (uint32_t value = 0; value < 256; ++value) {
      for (uint32_t bit = 0; bit < 8; ++bit) shift[byte][value] ^= (value >> bit & 1) != 0 ? of_bits[8 * byte + bit] : 0;
    }
  }
  return shift;
}
constexpr Shift shift = make_shift();

// `crc` behind part_bytes zeros.
uint32_t shifted(uint64_t crc) { return shift[0][crc & 0xFF] ^ shift[1][crc >> 8 & 0xFF] ^ shift[2][crc >> 16 & 0xFF] ^ shift[3][crc >> 24 & 0xFF]; }

uint64_t word_at(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, 8);
  return word;
}

__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const std::byte* data, size_t bytes, uint32_t crc) {
  uint64_t wide = crc;
  for (; bytes >= 3 * part_bytes; bytes -= 3 * part_bytes, data += 3 * part_bytes) {
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < part_bytes; i += 8) {
      wide = _mm_crc32_u64(wide, word_at(data + i));
      second = _mm_crc32_u64(second, word_at(data + part_bytes + i));
      third = _mm_crc32_u64(third, word_at(data + 2 * part_bytes + i));
    }
    wide = shifted(shifted(wide) ^ second) ^ third;
  }
  for (; bytes >= 8; bytes -= 8, data += 8) {
    wide = _mm_crc32_u64(wide, word_at(data));
  }
  crc = static_cast<uint32_t>(wide);
  for (; bytes > 0; --bytes, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return crc;
}
#endif

}  // namespace

uint32_t crc32c_reference(const void* data, size_t bytes, uint32_t seed) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint32_t crc = ~seed;
  for (size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ table[(crc ^ at[i]) & 0xFF];
  return ~crc;
}

uint32_t crc32c(const void* data, size_t bytes, uint32_t seed) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2");
  if (has_instruction) return ~crc32c_sse42(static_cast<const std::byte*>(data), bytes, ~seed);
#endif
  return crc32c_reference(data, bytes, seed);
}

}  // namespace unisono

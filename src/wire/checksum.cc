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
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(const std::byte* data, size_t bytes, uint32_t crc) {
  uint64_t wide = crc;
  for (; bytes >= 8; bytes -= 8, data += 8) {
    uint64_t word;
    std::memcpy(&word, data, 8);
    wide = _mm_crc32_u64(wide, word);
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

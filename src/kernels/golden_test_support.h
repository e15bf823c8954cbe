// The input values of the codecs' golden tests, and the checksum of their results.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace unisono {

// CRC-32 with zlib's polynomial.
inline uint32_t crc32(const void* data, size_t bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (size_t i = 0; i < bytes; ++i) {
    crc ^= static_cast<const uint8_t*>(data)[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

// Values uniform in [-1, 1); every 37th value is 16 times as large.
inline std::vector<float> gold(size_t count, uint32_t seed) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    seed = 1664525 * seed + 1013904223;
    values[i] = (static_cast<float>(seed >> 8) - 0x1p23f) / 0x1p23f;
    if (i % 37 == 5) values[i] *= 16;
  }
  return values;
}

}  // namespace unisono

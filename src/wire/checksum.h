// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, initial and final xor 0xFFFFFFFF; "123456789" -> 0xE3069283).
// By the best that the processor has for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unisono {

// Continues from seed (the result of an earlier call, 0 to start).
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);

// One way to compute it, all equal to the bit. `crc` and the result are without the initial and final xor.
struct ChecksumKernel {
  const char* name = nullptr;
  uint32_t (*update)(const void* data, size_t bytes, uint32_t crc) = nullptr;
};
// Those that this processor has, the best first; the last goes byte by byte through a table, and is on every processor.
std::span<const ChecksumKernel> runnable_checksums();

}  // namespace unisono

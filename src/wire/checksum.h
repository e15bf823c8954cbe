// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, initial and final xor 0xFFFFFFFF; "123456789" -> 0xE3069283).
// Computed with the fastest instructions that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unisono {

// Continues from seed (the result of an earlier call, 0 to start).
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);

// One implementation. All give the same bits. `crc` and the result are without the initial and final xor.
struct ChecksumKernel {
  const char* name = nullptr;
  uint32_t (*update)(const void* data, size_t bytes, uint32_t crc) = nullptr;
};
// The implementations that this processor can run, the best first. The last one uses a table byte by byte and runs everywhere.
std::span<const ChecksumKernel> runnable_checksums();

}  // namespace unisono

// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, initial and final xor 0xFFFFFFFF; "123456789" -> 0xE3069283).
// It is computed with the fastest instructions that the processor has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace unisono {

// Returns the checksum. To continue a checksum, pass as `seed` the result of the call for the bytes before `data`. To start
// one, pass 0.
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);

// One implementation of CRC-32C. All implementations give the same result. update() applies neither the initial nor the final
// xor.
struct ChecksumKernel {
  const char* name = nullptr;
  uint32_t (*update)(const void* data, size_t bytes, uint32_t crc) = nullptr;
};
// Returns the implementations that this processor can run, the fastest first. The last one looks up each byte in a table, and
// runs on every processor.
std::span<const ChecksumKernel> runnable_checksums();

}  // namespace unisono

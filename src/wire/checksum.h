// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, initial and final xor 0xFFFFFFFF; "123456789" -> 0xE3069283).
// Uses the CPU's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace unisono {

// Continues from seed (the result of an earlier call, 0 to start).
uint32_t crc32c(const void* data, size_t bytes, uint32_t seed = 0);
// The table-driven reference; equal to crc32c bit for bit.
uint32_t crc32c_reference(const void* data, size_t bytes, uint32_t seed = 0);

}  // namespace unisono

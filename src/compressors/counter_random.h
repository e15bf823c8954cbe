// Random numbers that are equal on all ranks without communication. Each number depends only on the seed, the step, the tensor,
// the purpose and the index.
//
// Source: Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3"
// (SC 2011). This code neither reads nor changes the random generators of the C and C++ libraries.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace unisono {

using PhiloxWords = std::array<uint32_t, 4>;
PhiloxWords philox(PhiloxWords counter, std::array<uint32_t, 2> key);

constexpr uint64_t normals_max = uint64_t{1} << 34;  // A stream has this many normal numbers.

struct RandomStream {
  // The numeric values must be the same on all ranks.
  enum class Purpose : uint8_t { sketch = 0, random_k = 1, test_data = 2 };

  uint64_t seed = 0;
  uint64_t step = 0;  // only the lower 56 bits are used
  uint32_t tensor = 0;
  Purpose purpose = Purpose::sketch;

  PhiloxWords block(uint32_t index) const;
  // Writes independent standard normal numbers of the stream to `out`: those with the indices first, first + 1, … The last
  // index must be less than normals_max. The numbers are computed in double and rounded to fp32. Because math libraries differ,
  // two machines may get numbers that differ in the last bit.
  void normals(uint64_t first, std::span<float> out) const;
};

}  // namespace unisono

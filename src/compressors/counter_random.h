// Random numbers that all ranks draw alike without a message: each is a pure function of a seed, a step, a tensor and an index.
//
// Philox4x32-10 of J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
// No generator of the process is read or written.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace unisono {

using PhiloxWords = std::array<uint32_t, 4>;
PhiloxWords philox(PhiloxWords counter, std::array<uint32_t, 2> key);

constexpr uint64_t normals_max = uint64_t{1} << 34;  // per stream

struct RandomStream {
  enum class Purpose : uint8_t { sketch = 0, random_k = 1, test_data = 2 };  // the numbers are part of what ranks agree on

  uint64_t seed = 0;
  uint64_t step = 0;  // its lower 56 bits count
  uint32_t tensor = 0;
  Purpose purpose = Purpose::sketch;

  PhiloxWords block(uint32_t index) const;
  // Independent standard normal numbers [first, first + out.size()) of this stream, in fp32. Computed in double: two machines
  // may differ in the last bit, as their mathematical libraries do. At most 2^34 numbers.
  void normals(uint64_t first, std::span<float> out) const;
};

}  // namespace unisono

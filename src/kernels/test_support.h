// Special values for tests of the kernels.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace unisono::kernels {

using Floats = std::vector<float>;
using BlockBytes = std::vector<uint8_t>;

inline constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();

}  // namespace unisono::kernels

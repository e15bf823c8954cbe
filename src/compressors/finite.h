// Checks whether numbers are finite, and makes the error that reports numbers that are not.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "unisono/status.h"

namespace unisono {

inline bool all_finite(std::span<const float> values) {
  // A finite number times zero is zero, while any other number gives NaN. With eight separate sums, the compiler can use vector
  // instructions.
  float sum[8] = {};
  size_t i = 0;
  for (; i + 8 <= values.size(); i += 8) {
    for (size_t lane = 0; lane < 8; ++lane) sum[lane] += values[i + lane] * 0.0f;
  }
  for (; i < values.size(); ++i) sum[0] += values[i] * 0.0f;
  return std::all_of(std::begin(sum), std::end(sum), [](float s) { return s == 0; });
}

inline Status not_finite(const char* where) {
  return {Code::corrupt, std::string("nonfinite: ") + where + " has an infinity or no number"};
}

}  // namespace unisono

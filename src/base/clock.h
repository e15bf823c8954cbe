// Time is an argument: nanoseconds on some monotonic clock, or on the simulator's virtual one. State machines take it and never
// read a clock; the code that drives them does.
#pragma once

#include <cstdint>
#include <limits>

namespace unisono {

using Nanos = int64_t;

inline constexpr Nanos never = std::numeric_limits<Nanos>::max();
inline constexpr Nanos microsecond = 1'000;
inline constexpr Nanos millisecond = 1'000'000;
inline constexpr Nanos second = 1'000'000'000;
inline constexpr Nanos timeout_max = 30 * 24 * 3600 * second;  // the longest timeout that a caller may set

constexpr double seconds_of(Nanos time) { return static_cast<double>(time) / second; }

// The time `milliseconds` after now; at most timeout_max after it.
constexpr Nanos after(Nanos now, int64_t milliseconds) {
  return milliseconds > timeout_max / millisecond ? now + timeout_max : now + milliseconds * millisecond;
}

}  // namespace unisono

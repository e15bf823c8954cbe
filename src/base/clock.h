// Times are nanoseconds. They come from a monotonic clock, or from the simulator's virtual clock. The state machines never read
// a clock themselves: the code that drives them passes the current time as an argument.
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

// Returns the time `milliseconds` after `now`. A longer wait than timeout_max is shortened to timeout_max.
constexpr Nanos after(Nanos now, int64_t milliseconds) {
  return milliseconds > timeout_max / millisecond ? now + timeout_max : now + milliseconds * millisecond;
}

}  // namespace unisono

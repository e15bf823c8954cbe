// Time as an argument: nanoseconds on some monotonic clock, or the simulator's virtual one.
// State machines receive it; only node/, cli/, training/drop_compute/dropper.cc and transports/udp/udp_socket.cc read a real
// clock.
#pragma once

#include <cstdint>
#include <limits>

namespace unisono {

using Nanos = int64_t;

inline constexpr Nanos never = std::numeric_limits<Nanos>::max();
inline constexpr Nanos microsecond = 1'000;
inline constexpr Nanos millisecond = 1'000'000;
inline constexpr Nanos second = 1'000'000'000;
inline constexpr Nanos timeout_max = 30 * 24 * 3600 * second;  // of anything that a caller may wait for

constexpr double seconds_of(Nanos time) { return static_cast<double>(time) / second; }

// When `milliseconds`, however many, have passed since now.
constexpr Nanos after(Nanos now, int64_t milliseconds) {
  return milliseconds > timeout_max / millisecond ? now + timeout_max : now + milliseconds * millisecond;
}

}  // namespace unisono

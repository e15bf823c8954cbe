// Time as an argument: nanoseconds on some monotonic clock, or the simulator's virtual one.
// State machines receive it; only node/ and cli/ read a real clock.
#pragma once

#include <cstdint>
#include <limits>

namespace unisono {

using Nanos = int64_t;

inline constexpr Nanos never = std::numeric_limits<Nanos>::max();
inline constexpr Nanos microsecond = 1'000;
inline constexpr Nanos millisecond = 1'000'000;
inline constexpr Nanos second = 1'000'000'000;

}  // namespace unisono

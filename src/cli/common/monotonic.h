// The clock of the tool. It counts nanoseconds and never goes back. Functions that depend on the time get it as an argument.
#pragma once

#include <ctime>

#include "base/clock.h"

namespace unisono::cli {

inline Nanos monotonic_now() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * second + time.tv_nsec;
}

// Returns the timeout for poll(2), or -1 if there is no deadline. The timeout is rounded up, so that a wait never ends before
// its deadline.
inline int poll_milliseconds(Nanos deadline, Nanos now) {
  if (deadline == never) return -1;
  if (deadline <= now) return 0;
  constexpr Nanos longest = 3'600'000 * millisecond;
  const auto left = deadline - now < longest ? deadline - now : longest;
  return static_cast<int>((left + millisecond - 1) / millisecond);
}

}  // namespace unisono::cli

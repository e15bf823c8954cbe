// Descriptors that wake the threads of a Runtime.
#pragma once

#include <sys/timerfd.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace unisono {

inline constexpr size_t wait_handles_max = 8;  // a thread waits for at most this many descriptors

inline void notify(int event_fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_fd, &one, sizeof(one));
}

inline void drain(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd, &count, sizeof(count));
}

inline void set_timer(int timer_fd, Nanos after) {
  const itimerspec time{.it_interval = {}, .it_value = {.tv_sec = after / second, .tv_nsec = after % second}};
  ::timerfd_settime(timer_fd, 0, &time, nullptr);
}

}  // namespace unisono

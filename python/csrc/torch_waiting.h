// Waits during which Python's handlers of signals run.
//
// Python runs them in the main thread only, when this thread executes Python code. A thread that blocks in C++ executes none.
// So the main thread waits in pieces of time, and runs the handlers in between.
#pragma once

#include <algorithm>
#include <chrono>

namespace unisono::torch_backend {

using Clock = std::chrono::steady_clock;
inline constexpr std::chrono::milliseconds signal_interval{100};
inline Clock::time_point far_future() { return Clock::now() + std::chrono::hours(24 * 365); }

// Returns whether this is the thread in which Python handles signals.
bool is_signal_thread();
// Runs the handlers of signals that have arrived. Throws the exception that a handler raises. Does nothing in other threads.
void handle_signals();
// Returns whether a handler of a signal has raised an exception that ended the last wait of the main thread. If so, the program
// has lost its interest in what is in flight, until it waits for something again.
bool was_interrupted();
void set_interrupted(bool value);

// Calls wait(time) until it returns true, or until the time `until`; returns which. wait() must wait for at most `time`.
// Between two calls, handlers of signals run. If one of them raises an exception, throws it.
template <typename Wait>
bool wait_interruptibly(Clock::time_point until, Wait&& wait) {
  const bool in_pieces = is_signal_thread();
  for (;;) {
    const auto left = std::max(until - Clock::now(), Clock::duration::zero());
    if (wait(in_pieces ? std::min<Clock::duration>(left, signal_interval) : left)) {
      if (in_pieces) set_interrupted(false);
      return true;
    }
    if (Clock::now() >= until) return false;
    handle_signals();
  }
}

}  // namespace unisono::torch_backend

// Children made by fork() while a thread of the parent writes to the log.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "events/event_log.h"
#include "events/process_log.h"

namespace unisono {
namespace {

// The other thread stays in the log at most this long. A fork that does not wait for it takes far less time.
constexpr std::chrono::milliseconds patience{500};
constexpr unsigned child_s = 10;  // a child that takes longer hangs

// What the other thread waits for while it holds the lock of the log: the log calls the clock under its lock.
struct Stay {
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = false, inside = false, forked = false;
};
Stay stay;

Nanos staying_clock() {
  std::unique_lock lock(stay.mutex);
  if (!stay.wanted) return 0;
  stay.wanted = false;
  stay.inside = true;
  stay.changed.notify_all();
  stay.changed.wait_for(lock, patience, [] { return stay.forked; });
  return 0;
}

// Returns whether a forked child came to the end of `body`.
bool child_ends(const std::function<void()>& body, const std::function<void()>& after_fork) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(child_s);
    body();
    ::_exit(0);
  }
  after_fork();
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(EventLogFork, a_child_writes_to_the_log_that_another_thread_was_writing_to) {
  EventLog log(LogTarget{}, &staying_clock, [](std::string_view) {});
  const Event event{.kind = EventKind::record_unavailable, .text = "no space"};
  stay.wanted = true;
  std::thread other([&] { log.write(event, false); });
  {
    std::unique_lock lock(stay.mutex);
    stay.changed.wait(lock, [] { return stay.inside; });
  }
  EXPECT_TRUE(child_ends([&] { log.write(event, false); },
                         [] {
                           const std::lock_guard lock(stay.mutex);
                           stay.forked = true;
                           stay.changed.notify_all();
                         }));
  other.join();
}

TEST(EventLogFork, children_find_the_log_of_the_process_while_another_thread_looks_for_it) {
  const auto find = [] {
    Status problem;
    (void)process_log(
        LogTarget{}, [] { return Nanos{0}; }, problem);
  };
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) find();
  });
  int ended = 0;
  for (; ended < 100 && child_ends(find, [] {}); ++ended) {}
  stop = true;
  other.join();
  EXPECT_EQ(ended, 100);
}

}  // namespace
}  // namespace unisono

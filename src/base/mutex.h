// std::mutex and its locks, with the attributes of base/thread_annotations.h. They cost what the standard's cost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace unisono {

class UNISONO_CAPABILITY("mutex") Mutex {
 public:
  void lock() UNISONO_ACQUIRE() { mutex_.lock(); }
  bool try_lock() UNISONO_TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() UNISONO_RELEASE() { mutex_.unlock(); }
  // Tells the analysis, in a lambda that is called with the mutex held, that it is. Does nothing.
  void assert_held() const UNISONO_ASSERT_CAPABILITY(this) {}

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Holds a mutex to the end of its scope.
class UNISONO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) UNISONO_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() UNISONO_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Lets go of a held mutex to the end of its scope, also when an exception ends that.
class UNISONO_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) UNISONO_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() UNISONO_RELEASE() { mutex_.lock(); }  // to the analysis the end of a scope releases, whatever it does
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

class ConditionVariable {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  // May return early, as the standard's do: call them in a loop.
  void wait(Mutex& mutex) UNISONO_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  template <typename Rep, typename Period>
  void wait_for(Mutex& mutex, std::chrono::duration<Rep, Period> time) UNISONO_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, time);
    lock.release();
  }
  template <typename Clock, typename Duration>
  void wait_until(Mutex& mutex, std::chrono::time_point<Clock, Duration> time) UNISONO_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_until(lock, time);
    lock.release();
  }

 private:
  std::condition_variable condition_;
};

}  // namespace unisono

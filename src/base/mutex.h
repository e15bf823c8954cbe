// Wraps std::mutex and its locks, and adds the attributes of base/thread_annotations.h. The wrappers cost nothing at run time.
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
  // Tells the analysis that the mutex is held. A lambda that runs with the mutex held calls this. It has no effect at run time.
  void assert_held() const UNISONO_ASSERT_CAPABILITY(this) {}

 private:
  friend class ConditionVariable;
  std::mutex mutex_;
};

// Locks a mutex, and unlocks it at the end of the scope.
class UNISONO_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) UNISONO_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() UNISONO_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Unlocks a held mutex. The destructor locks the mutex again, also when an exception leaves the scope.
class UNISONO_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) UNISONO_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() UNISONO_RELEASE() { mutex_.lock(); }  // the analysis requires "release" here, although the destructor locks
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

class ConditionVariable {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }
  // The waits may return before the condition holds, like those of std::condition_variable. So call them in a loop.
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

// One process in real time: the lock and the driver of an engine. The mutex guards GuardedState and the driver's own members;
// clang checks it (tools/check_locks).
//
// At most one thread drives at a time: it polls for a short bounded time, then sleeps in the kernel without the mutex. Other
// waiting threads sleep on a condition variable until their operation is done or nobody drives. When operations run and nobody
// waits, a background thread drives, a little later: most callers wait soon, and then it would only be in the way. Else it
// sleeps, and wakes up for processes that come to the rendezvous. Nothing here runs user code under the mutex.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "group/lifecycle/guarded_state.h"

namespace unisono {

class Runtime {
 public:
  // The engine itself ends an operation at its deadline. So much later it can only be a mistake of ours.
  static constexpr Nanos overdue_by = 10 * second;
  // Shutdown: how long a leaving process keeps serving retransmissions, and how much of that time is reserved for the goodbye
  // message itself.
  static constexpr Nanos drain_time = 2 * second, goodbye_time = 300 * millisecond;

  // The transports are made and listening; no other process is known yet.
  static Result<std::shared_ptr<Runtime>> make(const ResolvedOptions& options, PeerId self, std::vector<Link> links);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const ResolvedOptions& options() const { return options_; }

  // Runs f(GuardedState&) under the mutex. If it left operations running, somebody drives them.
  template <typename F>
  auto locked(F&& f) UNISONO_EXCLUDES(mutex_) {
    Entry entry(*this);
    return f(guarded_);
  }
  // Blocks until done() holds, driving if nobody else does. False if `until` passed first. done() is called under the mutex.
  using Done = std::function<bool(GuardedState&)>;
  bool wait(const Done& done, Nanos until) UNISONO_EXCLUDES(mutex_);
  // As wait, for one operation.
  bool wait(const Completion& completion, Nanos until) UNISONO_EXCLUDES(mutex_);
  // Submits an operation and drives it to its end; no other thread is woken for it. admit(GuardedState&), called under the
  // mutex, says whether its group still exists.
  template <typename Admit>
  Result<Report> run(GroupCore*& group, OperationRequest&& request, uint64_t id, Admit&& admit) UNISONO_EXCLUDES(mutex_) {
    CallerLock lock(*this);
    if (Status status = admit(guarded_); !status.ok()) return status;
    return run_locked(*group, std::move(request), id);
  }
  // Drives an operation to its end; overdue: when it should have ended by any measure.
  Result<Report> outcome(std::shared_ptr<Completion> completion, Nanos overdue) UNISONO_EXCLUDES(mutex_);
  // `notice` is run once when the operation has ended, by the thread that finds it, without the mutex.
  void watch(std::shared_ptr<Completion> completion, std::function<void()> notice) UNISONO_EXCLUDES(mutex_);
  // Starts the background driver; waits are complete without it until then.
  void start_background();

 private:
  using Notices = std::vector<std::function<void()>>;
  // How long an operation may be left alone before the background thread takes it up: more while it finds nothing to do.
  static constexpr Nanos call_delay_min = 50 * microsecond, call_delay_max = 400 * microsecond;
  // Nor is it worth a wake-up for every packet of thin links: a thread that has waited for long rests a little longer, and
  // takes several at once. Pacers make up for so much (TokenBucket::burst_time).
  static constexpr Nanos rest_max = 250 * microsecond;
  static constexpr int rest_part = 64;

  // Holds the mutex for a caller; asks a polling driver to let go of it soon.
  class UNISONO_SCOPED_CAPABILITY CallerLock {
   public:
    explicit CallerLock(Runtime& runtime) UNISONO_ACQUIRE(runtime.mutex_) : runtime_(runtime) { runtime_.enter(); }
    ~CallerLock() UNISONO_RELEASE() { runtime_.mutex_.unlock(); }
    CallerLock(const CallerLock&) = delete;
    CallerLock& operator=(const CallerLock&) = delete;

   private:
    Runtime& runtime_;
  };
  // Likewise; at its end it tells the driver, and the threads that wait, what has changed.
  class UNISONO_SCOPED_CAPABILITY Entry {
   public:
    explicit Entry(Runtime& runtime) UNISONO_ACQUIRE(runtime.mutex_) : runtime_(runtime) { runtime_.enter(); }
    ~Entry() UNISONO_RELEASE() { runtime_.leave(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Runtime& runtime_;
  };

  Runtime(const ResolvedOptions& options, PeerId self, std::vector<Link> links, int wake_fd, int rest_fd);
  static void let_go(Runtime* runtime);
  static void part(GuardedState& guarded);

  // The lock.
  void enter() UNISONO_ACQUIRE(mutex_);
  void leave() UNISONO_RELEASE(mutex_);
  void pass_gate() UNISONO_ACQUIRE(mutex_);
  void let_callers_in() UNISONO_REQUIRES(mutex_);
  // After a change: the threads that wait look again.
  void announce() UNISONO_REQUIRES(mutex_);
  Notices take_notices() UNISONO_REQUIRES(mutex_);
  // Runs the notices of operations that have ended; without the mutex meanwhile.
  void run_notices() UNISONO_REQUIRES(mutex_);

  // The driver.
  Result<Report> run_locked(GroupCore& group, OperationRequest&& request, uint64_t id) UNISONO_REQUIRES(mutex_);
  bool look_for(FastPath& fast_path) UNISONO_REQUIRES(mutex_);
  Result<Report> outcome_locked(std::shared_ptr<Completion> completion, Nanos overdue, Nanos now) UNISONO_REQUIRES(mutex_);
  template <typename Predicate>
  bool wait_locked(const Predicate& done, Nanos until, Nanos now) UNISONO_REQUIRES(mutex_);
  template <typename Predicate>
  void drive(const Predicate& done, Nanos until, Nanos now) UNISONO_REQUIRES(mutex_);
  void sleep(Nanos until, Nanos rest) UNISONO_REQUIRES(mutex_);
  void wake() const;
  uint64_t ended() const UNISONO_REQUIRES(mutex_);    // operations so far
  bool draining() const UNISONO_REQUIRES(mutex_);     // links still have something to write
  bool needs_links() const UNISONO_REQUIRES(mutex_);  // they have, and the background thread sleeps without looking at them

  // The background thread.
  void call_background() UNISONO_REQUIRES(mutex_);
  void background() UNISONO_EXCLUDES(mutex_);
  void rest() UNISONO_REQUIRES(mutex_);

  const ResolvedOptions options_;
  const int wake_fd_;  // for the driver
  const int rest_fd_;  // for the background thread, a timer
  Mutex mutex_;
  Mutex gate_;  // held by the next thread to get the mutex; a driver that lets callers in waits for it, or it would be first
                // again
  ConditionVariable free_;             // nobody drives, or something was done
  std::atomic<uint32_t> calling_{0};   // callers that wait for the mutex
  std::atomic<uint32_t> entering_{0};  // they, and the background thread

  GuardedState guarded_ UNISONO_GUARDED_BY(mutex_);
  std::vector<std::pair<std::shared_ptr<Completion>, std::function<void()>>> watched_ UNISONO_GUARDED_BY(mutex_);
  uint32_t waiters_ UNISONO_GUARDED_BY(mutex_) = 0;  // callers in wait(), the driver included
  bool driving_ UNISONO_GUARDED_BY(mutex_) = false, sleeping_ UNISONO_GUARDED_BY(mutex_) = false;
  bool stop_ UNISONO_GUARDED_BY(mutex_) = false;
  bool resting_ UNISONO_GUARDED_BY(mutex_) = false;  // the background thread waits for something to do
  bool rests_on_links_ UNISONO_GUARDED_BY(mutex_) = false;
  Nanos sleeps_until_ UNISONO_GUARDED_BY(mutex_) = 0;
  uint64_t ended_before_sleep_ UNISONO_GUARDED_BY(mutex_) = 0;
  // When the background thread is to look, or has last looked, for something to drive.
  Nanos called_for_ UNISONO_GUARDED_BY(mutex_) = 0;
  Nanos call_delay_ UNISONO_GUARDED_BY(mutex_) = call_delay_min;

  std::thread background_;
  bool orphaned_ = false;  // only the background thread touches it: it let go of the runtime last, and is to delete it
};

}  // namespace unisono

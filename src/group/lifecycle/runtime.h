// Runs the engine of one process in real time. Runtime has the lock of the engine, and drives it (calls it whenever there is
// something to do). The mutex guards GuardedState and some members of Runtime itself; clang checks this (tools/check_locks).
//
// At most one thread drives at a time. It polls for a short, limited time, and then sleeps in the kernel without the mutex.
// Other threads that wait for an operation sleep on a condition variable until their operation is done or until no thread
// drives. If operations run and no thread waits for one, a background thread drives. It starts after a short delay, because
// most callers soon wait, and until then it would only compete with them. Otherwise the background thread sleeps. A process
// that comes to the rendezvous wakes it. Code of the user never runs under the mutex.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "forks/fork.h"
#include "group/lifecycle/core_sharing.h"
#include "group/lifecycle/guarded_state.h"

namespace unisono {

class Runtime {
 public:
  // The engine ends an operation at its deadline. If an operation has not ended this much later, the library has a bug.
  static constexpr Nanos overdue_by = 10 * second;
  // When a process leaves, it goes on repeating lost frames for at most drain_time. The last part of this time, goodbye_time,
  // is reserved for the goodbye message itself.
  static constexpr Nanos drain_time = 2 * second, goodbye_time = 300 * millisecond;

  // Makes a runtime. The transports must already be listening. The runtime does not know any other process yet.
  static Result<std::shared_ptr<Runtime>> make(const ResolvedOptions& options, PeerId self, std::vector<Link> links);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const ResolvedOptions& options() const { return options_; }
  // The process that made the runtime. In a child made by fork(), call nothing but this function: another thread may have held
  // the mutex.
  const OwnerProcess& process() const { return process_; }

  // Runs f(GuardedState&) under the mutex. If operations run afterwards, a thread that waits or the background thread drives
  // them.
  template <typename F>
  auto locked(F&& f) UNISONO_EXCLUDES(mutex_) {
    Entry entry(*this);
    return f(guarded_);
  }
  // Blocks until done() returns true. If no other thread drives, this one does. Returns false if the time `until` passes first.
  // done() is called under the mutex.
  using Done = std::function<bool(GuardedState&)>;
  bool wait(const Done& done, Nanos until) UNISONO_EXCLUDES(mutex_);
  // Blocks until one operation has ended. Returns false if the time `until` passes first.
  bool wait(const Completion& completion, Nanos until) UNISONO_EXCLUDES(mutex_);
  // Submits an operation and drives it until it ends, without waking another thread. admit(GuardedState&) is called under the
  // mutex. It returns ok if the group still exists, and otherwise the reason why it does not.
  template <typename Admit>
  Result<Report> run(GroupCore*& group, OperationRequest&& request, uint64_t id, Admit&& admit) UNISONO_EXCLUDES(mutex_) {
    CallerLock lock(*this);
    if (Status status = admit(guarded_); !status.ok()) return status;
    return run_locked(*group, std::move(request), id);
  }
  // Starts an operation for a caller that waits for it next. Like run(), this polls for a short time, so the operation may have
  // ended on return. Otherwise it makes progress only after somebody has begun to wait for it.
  struct Begun {
    std::shared_ptr<Completion> completion;  // null if the operation has ended
    std::optional<Result<Report>> ended;     // the outcome of an operation that has ended
  };
  template <typename Admit>
  void begin(GroupCore*& group, OperationRequest&& request, uint64_t id, Admit&& admit, Begun& begun) UNISONO_EXCLUDES(mutex_) {
    CallerLock lock(*this);
    if (Status status = admit(guarded_); !status.ok()) begun.ended.emplace(std::move(status));
    else begin_locked(*group, std::move(request), id, begun);
  }
  // Drives an operation until it ends. `overdue` is a time: if the operation has not ended by then, the library has a bug.
  Result<Report> outcome(std::shared_ptr<Completion> completion, Nanos overdue) UNISONO_EXCLUDES(mutex_);
  // Runs `notice` once, after the operation has ended. The thread that notices the end runs it, without holding the mutex.
  void watch(std::shared_ptr<Completion> completion, std::function<void()> notice) UNISONO_EXCLUDES(mutex_);
  // Starts the background thread. Before this call, operations make progress only while a thread waits.
  void start_background();

 private:
  using Notices = std::vector<std::function<void()>>;
  // How long operations may run before the background thread drives them. If the thread finds nothing to do, the delay gets
  // longer.
  static constexpr Nanos background_delay_min = 50 * microsecond, background_delay_max = 400 * microsecond;
  // The background thread polls links that await confirmations after this time, and then less and less often.
  static constexpr Nanos background_tick_min = 5 * millisecond, background_tick_max = 40 * millisecond;
  // For this long the background thread leaves what an idle handle reports to a thread that drives.
  static constexpr Nanos idle_pause = 10 * millisecond;
  // On slow links, it costs too much to wake a thread for every packet. Therefore a thread that has waited for a time T first
  // pauses, and then takes several packets at once. The pause is min(T / batching_pause_part, batching_pause_max). Pacers,
  // which limit the rate of sending, make up for this delay (TokenBucket::burst_time).
  static constexpr Nanos batching_pause_max = 250 * microsecond;
  static constexpr int batching_pause_part = 64;

  // Holds the mutex for a caller. If a driver is polling, it soon gives the mutex to the caller.
  class UNISONO_SCOPED_CAPABILITY CallerLock {
   public:
    explicit CallerLock(Runtime& runtime) UNISONO_ACQUIRE(runtime.mutex_) : runtime_(runtime) { runtime_.enter(); }
    ~CallerLock() UNISONO_RELEASE() { runtime_.mutex_.unlock(); }
    CallerLock(const CallerLock&) = delete;
    CallerLock& operator=(const CallerLock&) = delete;

   private:
    Runtime& runtime_;
  };
  // Holds the mutex for a caller. When it is destroyed, it wakes the driver and the waiting threads if something has changed
  // for them.
  class UNISONO_SCOPED_CAPABILITY Entry {
   public:
    explicit Entry(Runtime& runtime) UNISONO_ACQUIRE(runtime.mutex_) : runtime_(runtime) { runtime_.enter(); }
    ~Entry() UNISONO_RELEASE() { runtime_.leave(); }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    Runtime& runtime_;
  };

  Runtime(const ResolvedOptions& options, PeerId self, std::vector<Link> links, EventLog& log, int wake_fd, int timer_fd);
  static void delete_or_orphan(Runtime* runtime);
  static void leave_and_close_links(GuardedState& guarded);

  // These functions belong to the lock.
  void enter() UNISONO_ACQUIRE(mutex_);
  void leave() UNISONO_RELEASE(mutex_);
  void pass_gate() UNISONO_ACQUIRE(mutex_);
  void yield_to_callers() UNISONO_REQUIRES(mutex_);
  // Wakes the waiting threads after a change.
  void notify_waiters() UNISONO_REQUIRES(mutex_);
  Notices take_notices() UNISONO_REQUIRES(mutex_);
  // Runs the notices of operations that have ended, and delivers events. The mutex is released meanwhile.
  void run_notices() UNISONO_REQUIRES(mutex_);

  // These functions belong to the driver.
  Result<Report> run_locked(GroupCore& group, OperationRequest&& request, uint64_t id) UNISONO_REQUIRES(mutex_);
  void begin_locked(GroupCore& group, OperationRequest&& request, uint64_t id, Begun& begun) UNISONO_REQUIRES(mutex_);
  // Begins the operation on the fast path. Returns false if it cannot take this path; it has not begun then.
  bool begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now)
      UNISONO_REQUIRES(mutex_);
  bool poll_fast_path(FastPath& fast_path) UNISONO_REQUIRES(mutex_);
  Result<Report> outcome_locked(std::shared_ptr<Completion> completion, Nanos overdue, Nanos now) UNISONO_REQUIRES(mutex_);
  template <typename Predicate>
  bool wait_locked(const Predicate& done, Nanos until, Nanos now) UNISONO_REQUIRES(mutex_);
  template <typename Predicate>
  void drive(const Predicate& done, Nanos until, Nanos now) UNISONO_REQUIRES(mutex_);
  void sleep(Nanos until, Nanos pause) UNISONO_REQUIRES(mutex_);
  void wake() const;
  uint64_t ended() const UNISONO_REQUIRES(mutex_);  // number of operations that have ended so far
  bool draining() const UNISONO_REQUIRES(mutex_);   // true: links have bytes to write

  // These functions belong to the background thread.
  // Call this when a thread stops using the links. It wakes the background thread if that has something to do.
  void rouse_background() UNISONO_REQUIRES(mutex_);
  void wake_background() UNISONO_REQUIRES(mutex_);
  bool awaits_confirmations() const UNISONO_REQUIRES(mutex_);
  void tick(bool busy) UNISONO_REQUIRES(mutex_);
  void background() UNISONO_EXCLUDES(mutex_);
  void background_sleep() UNISONO_REQUIRES(mutex_);
  // Serves the rendezvous if its descriptor was `readable` or its deadline has come.
  void serve_rendezvous(bool readable) UNISONO_REQUIRES(mutex_);
  // true: the background thread serves the rendezvous, and must wake because what it waits for is another descriptor or time
  // now
  bool rendezvous_changed() const UNISONO_REQUIRES(mutex_);

  const OwnerProcess process_;
  const ResolvedOptions options_;
  const int wake_fd_;   // an eventfd that wakes the driver
  const int timer_fd_;  // a timerfd that wakes the background thread
  Mutex mutex_;
  // The thread that will get the mutex next holds this lock. A driver that wants to let callers in waits for this lock. If it
  // did not, the driver itself would get the mutex again first.
  Mutex gate_;
  ConditionVariable free_;                    // It is signaled when no thread drives any more, or when an operation has ended.
  std::atomic<uint32_t> callers_waiting_{0};  // number of callers that wait for the mutex
  std::atomic<uint32_t> threads_waiting_{0};  // callers_waiting_, plus one if the background thread waits for the mutex, too

  std::atomic<uint64_t> calls_{0};  // counts what rouse_background() is called for

  EventQueue events_;
  GuardedState guarded_ UNISONO_GUARDED_BY(mutex_);
  std::vector<std::pair<std::shared_ptr<Completion>, std::function<void()>>> watched_ UNISONO_GUARDED_BY(mutex_);
  uint32_t waiters_ UNISONO_GUARDED_BY(mutex_) = 0;  // number of callers in wait(), including the driver
  bool driving_ UNISONO_GUARDED_BY(mutex_) = false, sleeping_ UNISONO_GUARDED_BY(mutex_) = false;
  bool stop_ UNISONO_GUARDED_BY(mutex_) = false;
  bool background_sleeping_ UNISONO_GUARDED_BY(mutex_) = false;  // true: the background thread is in background_sleep()
  bool background_watches_links_ UNISONO_GUARDED_BY(mutex_) = false;
  // 0: no link awaits confirmations, as far as the background thread knows. Else it looks after them after this time.
  Nanos background_tick_ UNISONO_GUARDED_BY(mutex_) = background_tick_min;
  bool idle_handle_was_ready_ UNISONO_GUARDED_BY(mutex_) = false;  // it has woken the background thread
  CoreSharing core_sharing_ UNISONO_GUARDED_BY(mutex_);
  // What the background thread waits for in background_sleep(): the descriptor of the rendezvous, and its deadline.
  int background_rendezvous_ UNISONO_GUARDED_BY(mutex_) = -1;
  Nanos background_rendezvous_deadline_ UNISONO_GUARDED_BY(mutex_) = never;
  Nanos sleeps_until_ UNISONO_GUARDED_BY(mutex_) = 0;
  uint64_t ended_before_sleep_ UNISONO_GUARDED_BY(mutex_) = 0;
  // The time when the background thread will look for operations to drive, or the time when it last did so.
  Nanos background_wake_at_ UNISONO_GUARDED_BY(mutex_) = 0;
  Nanos background_delay_ UNISONO_GUARDED_BY(mutex_) = background_delay_min;

  std::thread background_;
  // true: the background thread has dropped the last reference, so it must delete the runtime. Only that thread uses this
  // member.
  bool orphaned_ = false;
};

}  // namespace unisono

#include "group/lifecycle/runtime.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/error_text.h"
#include "events/process_log.h"
#include "group/lifecycle/wake_descriptors.h"

namespace unisono {

namespace {

constexpr Nanos sleep_max = 100 * millisecond;  // This limit is only a safeguard against a wake-up that gets lost.

constexpr int polls_per_clock_reading = 16;
constexpr int fast_path_polls_max = 1000, fast_path_yields_max = 50;  // The fast path polls for about 20 us.
// If a rank may share its core with another one, it polls for about 1 us before it yields. If not, it yields a few times at the
// end, to find out (CoreSharing).
constexpr int fast_path_polls_shared = 50, fast_path_yields_few = 4;
constexpr Nanos yield_after = 20 * microsecond;  // A thread that polls without the fast path finds it out after this time.
constexpr Nanos fast_path_time_max = 1000 * microsecond;

}  // namespace

Result<std::shared_ptr<Runtime>> Runtime::make(const ResolvedOptions& options, PeerId self, std::vector<Link> links) {
  const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (wake_fd >= 0 && timer_fd >= 0) {
    Status problem;
    auto& log = process_log(options.log, monotonic_now, problem);
    std::shared_ptr<Runtime> runtime(new Runtime(options, self, std::move(links), log, wake_fd, timer_fd), delete_or_orphan);
    if (!problem.ok()) runtime->events_.add(EventKind::log_unavailable, -1, problem.message());
    return runtime;
  }
  const std::string why = error_text(errno);
  for (const int fd : {wake_fd, timer_fd}) {
    if (fd >= 0) ::close(fd);
  }
  return Status(Code::unavailable, "eventfd or timerfd: " + why);
}

Runtime::Runtime(const ResolvedOptions& options, PeerId self, std::vector<Link> links, EventLog& log, int wake_fd, int timer_fd)
    : options_(options),
      wake_fd_(wake_fd),
      timer_fd_(timer_fd),
      events_(options.on_event, &log),
      guarded_(options, self, std::move(links), events_) {}

// The deleter of the shared pointer. The last reference may be in a notice (a callback) that the background thread runs. The
// thread cannot wait for its own end, so it deletes the runtime itself when it ends. In a child made by fork(), the runtime is
// left alone: it has no thread there, and its links belong to the parent.
void Runtime::delete_or_orphan(Runtime* runtime) {
  if (runtime->process_.forked()) return;
  if (runtime->background_.get_id() != std::this_thread::get_id()) delete runtime;
  else runtime->orphaned_ = true;
}

Runtime::~Runtime() {
  // Other ranks may need operations for which nobody waits here any more. Each of them ends at its deadline.
  (void)wait([](const GuardedState& guarded) { return !guarded.engine.is_needed(); }, never);
  // Peers may still be in the last collective, and some frames may have been lost. Therefore this process goes on repeating
  // lost frames for a while.
  const auto until = monotonic_now() + drain_time;
  const auto settled = [](const GuardedState& guarded) { return !guarded.engine.has_pending(); };
  (void)wait(settled, until);
  locked(leave_and_close_links);
  (void)wait(settled, std::max(until, monotonic_now() + goodbye_time));
  {
    Entry entry(*this);
    stop_ = true;
    notify(wake_fd_);
    set_timer(timer_fd_, 1);
  }
  if (background_.joinable()) background_.join();
  events_.deliver();
  ::close(wake_fd_);
  ::close(timer_fd_);
}

void Runtime::leave_and_close_links(GuardedState& guarded) {
  // Read the last bytes of the peers before the links are closed. If a TCP link is closed while there are unread bytes, a reset
  // is sent, and it could overtake our own last bytes.
  guarded.engine.poll(monotonic_now());
  guarded.engine.leave(monotonic_now());
  for (const auto peer : guarded.members.peers()) {
    if (peer == self_peer || !guarded.engine.peer_status(peer).ok()) continue;
    for (const auto& link : guarded.members.links()) {
      if (link.connector->state(peer) == LinkState::up) link.transport->close(peer);
    }
  }
}

void Runtime::enter() {
  if (mutex_.try_lock()) return;
  callers_waiting_.fetch_add(1, std::memory_order_relaxed);
  pass_gate();
  callers_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void Runtime::leave() {
  rouse_background();
  if (rendezvous_changed()) set_timer(timer_fd_, 1);
  // Wake a driver that sleeps in three cases: its deadline is earlier now, links have bytes to write, or an operation has ended
  // while another thread polled.
  const bool earlier =
      sleeping_ && (guarded_.engine.next_deadline() < sleeps_until_ || draining() || ended() != ended_before_sleep_);
  notify_waiters();
  const auto notices = take_notices();
  mutex_.unlock();
  if (earlier) wake();
  for (const auto& notice : notices) notice();
  if (events_.is_waiting()) events_.deliver();
}

void Runtime::pass_gate() {
  threads_waiting_.fetch_add(1, std::memory_order_relaxed);
  gate_.lock();
  mutex_.lock();
  gate_.unlock();
  threads_waiting_.fetch_sub(1, std::memory_order_relaxed);
}

// Called by the driver after a poll. Lets callers that wait have the mutex, because they may want to start another operation.
void Runtime::yield_to_callers() {
  mutex_.unlock();
  gate_.lock();  // This call returns when the first waiting thread has the mutex.
  gate_.unlock();
  mutex_.lock();
}

void Runtime::watch(std::shared_ptr<Completion> completion, std::function<void()> notice) {
  Entry entry(*this);
  watched_.emplace_back(std::move(completion), std::move(notice));
}

Runtime::Notices Runtime::take_notices() {
  Notices notices;
  std::erase_if(watched_, [&](auto& watched) {
    if (watched.first->done) notices.push_back(std::move(watched.second));
    return watched.first->done;
  });
  return notices;
}

void Runtime::run_notices() {
  auto notices = watched_.empty() ? Notices() : take_notices();
  if (notices.empty() && !events_.is_waiting()) return;
  MutexUnlock unlocked(mutex_);
  events_.deliver();
  for (const auto& notice : notices) notice();
  // This destroys the notices and everything that they keep alive. It may take long, so it happens without the mutex.
  notices.clear();
}

void Runtime::wake() const { notify(wake_fd_); }

uint64_t Runtime::ended() const {
  return guarded_.engine.counters().operations_ok + guarded_.engine.counters().operations_failed;
}

bool Runtime::draining() const {
  return std::ranges::any_of(guarded_.members.links(), [](const Link& link) { return link.transport->draining(); });
}

// Sleeps in the kernel until an event happens, or until the time `until`. During the first `pause` nanoseconds, events of links
// are ignored.
void Runtime::sleep(Nanos until, Nanos pause) {
  const auto links = guarded_.members.links();
  // If the background thread sleeps, it is the one that serves the session.
  auto* const session = background_sleeping_ ? nullptr : guarded_.members.session();
  std::array<pollfd, wait_handles_max> fds;
  nfds_t count = 0;
  fds[count++] = {wake_fd_, POLLIN, 0};
  size_t armed = 0;
  bool idle = true;
  guarded_.engine.prepare_to_sleep();
  for (; armed < links.size() && idle; ++armed) idle = links[armed].transport->arm();
  for (const auto& link : links) {
    if (link.transport->wait_handle() >= 0 && count < wait_handles_max)
      fds[count++] = {link.transport->wait_handle(), POLLIN, 0};
  }
  const auto rendezvous = count;
  auto session_deadline = never;
  if (session != nullptr && count < wait_handles_max) {
    fds[count++] = {session->wait_handle(), POLLIN, 0};
    session_deadline = session->next_deadline();
  }
  if (idle && threads_waiting_.load(std::memory_order_relaxed) == 0) {
    const auto now = monotonic_now();
    guarded_.engine.observe_before_sleep(now);
    sleeps_until_ = std::min({until, guarded_.engine.next_deadline(), session_deadline, now + sleep_max});
    const auto left = std::max<Nanos>(0, sleeps_until_ - now);
    ended_before_sleep_ = ended();
    sleeping_ = true;
    mutex_.unlock();
    // During the pause, only wake_fd_ can end the sleep. Slow links would end it too early, because their next datagram comes
    // soon anyway, and because they have timers.
    if (pause > 0 && left > 0) {
      const timespec first{.tv_sec = 0, .tv_nsec = std::min(pause, std::max<Nanos>(0, until - now))};
      ::ppoll(fds.data(), 1, &first, nullptr);
    }
    const auto later = pause < left ? left - pause : 0;
    const timespec time{.tv_sec = later / second, .tv_nsec = later % second};
    ::ppoll(fds.data(), count, &time, nullptr);
    mutex_.lock();
    sleeping_ = false;
    if (fds[0].revents != 0) drain(wake_fd_);
    if (rendezvous < count) serve_rendezvous(fds[rendezvous].revents != 0);
  }
  for (size_t i = 0; i < armed; ++i) links[i].transport->disarm();
}

// Polls until done() returns true, or until the time `until`. Sleeps if there has been no progress for a while. In between,
// gives the mutex to callers that wait for it.
template <typename Predicate>
void Runtime::drive(const Predicate& done, Nanos until, Nanos now) {
  const auto began = now;
  const auto& members = guarded_.members;
  const auto& yields = guarded_.yields;
  const auto spin = members.has_thin_links() ? 0 : yields ? 100 * microsecond : 60 * microsecond;
  auto last_progress = now;
  bool yielded = false, slept = false;
  // When this thread stops driving, the links may still have bytes to write, and the background thread does not watch those
  // links.
  background_watches_links_ = false;
  while (!stop_) {
    bool progress = guarded_.engine.poll(now);
    // Reading the clock takes as long as a poll that finds nothing, so several polls share one reading. Slow links are polled
    // only once, because their packets are rare.
    for (int i = 0; i < polls_per_clock_reading && !members.has_thin_links() && !progress && !yields &&
                    threads_waiting_.load(std::memory_order_relaxed) == 0;
         ++i)
      progress = guarded_.engine.poll(now);
    if (progress && waiters_ > 1) free_.notify_all();
    if (progress || events_.is_waiting()) run_notices();
    if (done(guarded_)) {
      if (!slept) core_sharing_.call_ended(yielded);
      return;
    }
    yielded = slept = false;
    now = monotonic_now();
    if (now >= until) return;
    if (progress) last_progress = now;
    if (callers_waiting_.load(std::memory_order_relaxed) > 0 ||
        (!progress && threads_waiting_.load(std::memory_order_relaxed) > 0)) {
      yield_to_callers();
      now = monotonic_now();
    } else if (now - last_progress > spin) {
      sleep(until, members.has_thin_links() ? std::min((now - began) / batching_pause_part, batching_pause_max) : 0);
      now = last_progress = monotonic_now();
      slept = true;
    } else if (!progress && (yields || core_sharing_.is_likely() || now - last_progress > yield_after)) {
      sched_yield();
      yielded = true;
    }
    if (done(guarded_)) return;
  }
}

void Runtime::notify_waiters() {
  if (driving_ || waiters_ > 0) free_.notify_all();
}

template <typename Predicate>
bool Runtime::wait_locked(const Predicate& done, Nanos until, Nanos now) {
  ++waiters_;
  while (!done(guarded_) && !stop_ && now < until) {
    if (!driving_) {
      driving_ = true;
      drive(done, until, now);
      driving_ = false;
      if (done(guarded_)) break;
    } else {
      if (sleeping_) wake();
      const auto left = std::min(until - now, sleep_max);
      free_.wait_for(mutex_, std::chrono::nanoseconds(std::max<Nanos>(left, 0)));
    }
    now = monotonic_now();
  }
  --waiters_;
  if (waiters_ > 0) free_.notify_all();
  else rouse_background();
  // Messages may have arrived while this thread was not running. So poll once more before the result is decided.
  if (!done(guarded_) && !stop_) guarded_.engine.poll(monotonic_now());
  run_notices();
  return done(guarded_);
}

bool Runtime::wait(const Done& done, Nanos until) {
  CallerLock lock(*this);
  return wait_locked(done, until, monotonic_now());
}

bool Runtime::wait(const Completion& completion, Nanos until) {
  CallerLock lock(*this);
  return wait_locked([&](const GuardedState&) { return completion.done; }, until, monotonic_now());
}

Result<Report> Runtime::outcome(std::shared_ptr<Completion> completion, Nanos overdue) {
  CallerLock lock(*this);
  return outcome_locked(std::move(completion), overdue, monotonic_now());
}

// Polls the fast path for a short time, which is limited. Returns true if all frames have arrived.
bool Runtime::poll_fast_path(FastPath& fast_path) {
  auto found = FastPath::Found::incomplete;
  const bool shared = guarded_.yields || core_sharing_.is_likely();
  const int polls_max = guarded_.yields ? 1 : shared ? fast_path_polls_shared : fast_path_polls_max;
  const int yields_max = shared ? fast_path_yields_max : fast_path_yields_few;
  for (int polls = 0; polls < polls_max + yields_max; ++polls) {
    const bool yields = polls >= polls_max;
    if (yields) sched_yield();
    found = guarded_.engine.look(fast_path);
    if (found != FastPath::Found::incomplete) {
      core_sharing_.call_ended(yields);
      return found == FastPath::Found::all;
    }
    if (threads_waiting_.load(std::memory_order_relaxed) > 0) return false;
    // A single sched_yield() may take longer than all polls should take together.
    if (yields && monotonic_now() - fast_path.started > fast_path_time_max) return false;
  }
  return false;
}

bool Runtime::begin_fast_path(FastPath& fast_path, GroupCore& group, OperationRequest& request, uint64_t id, Nanos now) {
  const bool alone = !driving_ && waiters_ == 0;
  return alone && guarded_.engine.begin_fast_path(fast_path, group, request, id, now);
}

Result<Report> Runtime::run_locked(GroupCore& group, OperationRequest&& request, uint64_t id) {
  const auto now = monotonic_now();
  const auto overdue = now + request.timeout + overdue_by;
  FastPath fast_path;
  if (!begin_fast_path(fast_path, group, request, id, now)) {
    return outcome_locked(guarded_.engine.submit(group, std::move(request), id, now), overdue, now);
  }
  if (poll_fast_path(fast_path)) return guarded_.engine.report(fast_path, monotonic_now());
  const auto later = monotonic_now();
  return outcome_locked(guarded_.engine.take_over(fast_path, later), overdue, later);
}

void Runtime::begin_locked(GroupCore& group, OperationRequest&& request, uint64_t id, Begun& begun) {
  const auto now = monotonic_now();
  FastPath fast_path;
  if (!begin_fast_path(fast_path, group, request, id, now)) {
    begun.completion = guarded_.engine.submit(group, std::move(request), id, now);
  } else if (poll_fast_path(fast_path)) {
    begun.ended.emplace(guarded_.engine.report(fast_path, monotonic_now()));
    return;
  } else {
    begun.completion = guarded_.engine.take_over(fast_path, monotonic_now());
  }
  notify_waiters();
  run_notices();
}

Result<Report> Runtime::outcome_locked(std::shared_ptr<Completion> completion, Nanos overdue, Nanos now) {
  const auto done = [&](const GuardedState&) { return completion->done; };
  if (completion->done) {
    notify_waiters();
  } else if (!wait_locked(done, overdue, now) && !wait_locked(done, monotonic_now() + overdue_by, monotonic_now())) {
    // A process may have been stopped until after the deadline. The second wait gives it the time to tell its peers about the
    // failure and to learn about theirs.
    return Status(Code::internal, "an operation did not end at its deadline: this is a bug in Unisono");
  }
  auto outcome = completion->outcome();
  guarded_.engine.reuse(std::move(completion));
  run_notices();
  return outcome;
}

void Runtime::background() {
  mutex_.lock();
  // Links may have work left from the join. Without any, nothing is polled before the first call: a message of a member that
  // re-forms the group would end that call.
  if (awaits_confirmations()) background_tick_ = background_tick_min;
  while (!stop_ && !orphaned_) {
    if (guarded_.engine.active() == 0 || waiters_ > 0 || driving_) {
      background_sleep();
      continue;
    }
    driving_ = true;
    const auto done = [this](const GuardedState& guarded) {
      mutex_.assert_held();
      return waiters_ > 0 || guarded.engine.active() == 0 || orphaned_;
    };
    drive(done, never, monotonic_now());
    driving_ = false;
    free_.notify_all();
  }
  mutex_.unlock();
  if (!orphaned_) return;
  background_.detach();
  delete this;
}

}  // namespace unisono

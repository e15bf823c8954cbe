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

namespace unisono {

namespace {

constexpr Nanos sleep_max = 100 * millisecond;  // nothing depends on it: a bound on what a lost wake-up could cost
constexpr size_t wait_handles_max = 8;

void notify(int fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(fd, &one, sizeof(one));
}

void drain(int fd) {
  uint64_t count = 0;
  [[maybe_unused]] const auto got = ::read(fd, &count, sizeof(count));
}

constexpr int polls_per_reading = 16;
constexpr int fast_path_looks_max = 1000, fast_path_yields_max = 50;  // some 20 us
constexpr Nanos fast_path_time_max = 1000 * microsecond;

void set_timer(int fd, Nanos after) {
  const itimerspec time{.it_interval = {}, .it_value = {.tv_sec = after / second, .tv_nsec = after % second}};
  ::timerfd_settime(fd, 0, &time, nullptr);
}

}  // namespace

Result<std::shared_ptr<Runtime>> Runtime::make(const ResolvedOptions& options, PeerId self, std::vector<Link> links) {
  const int wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int rest_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (wake_fd >= 0 && rest_fd >= 0)
    return std::shared_ptr<Runtime>(new Runtime(options, self, std::move(links), wake_fd, rest_fd), let_go);
  const std::string why = std::strerror(errno);
  for (const int fd : {wake_fd, rest_fd}) {
    if (fd >= 0) ::close(fd);
  }
  return Status(Code::unavailable, "eventfd or timerfd: " + why);
}

Runtime::Runtime(const ResolvedOptions& options, PeerId self, std::vector<Link> links, int wake_fd, int rest_fd)
    : options_(options), wake_fd_(wake_fd), rest_fd_(rest_fd), guarded_(options, self, std::move(links)) {}

// A notice may have held the last reference, so that the background thread is the last to need the runtime: it goes on until
// it does not need it either.
void Runtime::let_go(Runtime* runtime) {
  if (runtime->background_.get_id() != std::this_thread::get_id()) delete runtime;
  else runtime->orphaned_ = true;
}

Runtime::~Runtime() {
  // Members may be in the last collective yet, and lack frames that were lost on their way from here.
  const auto until = monotonic_now() + drain_time;
  const auto settled = [](const GuardedState& guarded) { return !guarded.engine.has_pending(); };
  (void)wait(settled, until);
  locked(part);
  (void)wait(settled, std::max(until, monotonic_now() + goodbye_time));
  {
    Entry entry(*this);
    stop_ = true;
    notify(wake_fd_);
    set_timer(rest_fd_, 1);
  }
  if (background_.joinable()) background_.join();
  ::close(wake_fd_);
  ::close(rest_fd_);
}

void Runtime::part(GuardedState& guarded) {
  // The runtime reads the others' last bytes before it closes the links, so that no reset overtakes its own last bytes.
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
  calling_.fetch_add(1, std::memory_order_relaxed);
  pass_gate();
  calling_.fetch_sub(1, std::memory_order_relaxed);
}

void Runtime::leave() {
  const bool undriven = guarded_.engine.active() > 0 && !driving_ && waiters_ == 0;
  if ((undriven && resting_) || needs_links()) call_background();
  // A sleeping driver must learn of an earlier deadline, of what the kernel did not take at once, and of what ended in a poll
  // of somebody else.
  const bool earlier =
      sleeping_ && (guarded_.engine.next_deadline() < sleeps_until_ || draining() || ended() != ended_before_sleep_);
  announce();
  const auto notices = take_notices();
  mutex_.unlock();
  if (earlier) wake();
  for (const auto& notice : notices) notice();
}

void Runtime::pass_gate() {
  entering_.fetch_add(1, std::memory_order_relaxed);
  gate_.lock();
  mutex_.lock();
  gate_.unlock();
  entering_.fetch_sub(1, std::memory_order_relaxed);
}

// A caller may want to begin another operation: it waits until a message or so is handled, not until there is nothing to do.
void Runtime::let_callers_in() {
  mutex_.unlock();
  gate_.lock();  // until the first of them has the mutex
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
  if (watched_.empty()) return;
  auto notices = take_notices();
  if (notices.empty()) return;
  MutexUnlock unlocked(mutex_);
  for (const auto& notice : notices) notice();
  notices.clear();  // what they keep alive, whatever it takes to end that, goes without the mutex
}

void Runtime::wake() const { notify(wake_fd_); }

uint64_t Runtime::ended() const {
  return guarded_.engine.counters().operations_ok + guarded_.engine.counters().operations_failed;
}

bool Runtime::draining() const {
  return std::ranges::any_of(guarded_.members.links(), [](const Link& link) { return link.transport->draining(); });
}

bool Runtime::needs_links() const { return resting_ && !rests_on_links_ && draining(); }

void Runtime::call_background() {
  const auto now = monotonic_now();
  if (now < called_for_) return;
  called_for_ = now + call_delay_;
  set_timer(rest_fd_, call_delay_);
}

// rest: how long events of links may wait meanwhile.
void Runtime::sleep(Nanos until, Nanos rest) {
  const auto links = guarded_.members.links();
  auto* const session = resting_ ? nullptr : guarded_.members.session();  // the background thread attends to it
  std::array<pollfd, wait_handles_max> fds;
  nfds_t count = 0;
  fds[count++] = {wake_fd_, POLLIN, 0};
  size_t armed = 0;
  bool idle = true;
  for (; armed < links.size() && idle; ++armed) idle = links[armed].transport->arm();
  for (const auto& link : links) {
    if (link.transport->wait_handle() >= 0 && count < wait_handles_max)
      fds[count++] = {link.transport->wait_handle(), POLLIN, 0};
  }
  const auto rendezvous = count;
  if (session != nullptr && count < wait_handles_max) fds[count++] = {session->wait_handle(), POLLIN, 0};
  if (idle && entering_.load(std::memory_order_relaxed) == 0) {
    const auto now = monotonic_now();
    guarded_.engine.observe_before_sleep(now);
    sleeps_until_ = std::min({until, guarded_.engine.next_deadline(), now + sleep_max});
    const auto left = std::max<Nanos>(0, sleeps_until_ - now);
    ended_before_sleep_ = ended();
    sleeping_ = true;
    mutex_.unlock();
    // Timers of links and operations may be late by that, too: on thin links the next datagram is always due.
    if (rest > 0 && left > 0) {
      const timespec first{.tv_sec = 0, .tv_nsec = std::min(rest, std::max<Nanos>(0, until - now))};
      ::ppoll(fds.data(), 1, &first, nullptr);
    }
    const auto later = rest < left ? left - rest : 0;
    const timespec time{.tv_sec = later / second, .tv_nsec = later % second};
    ::ppoll(fds.data(), count, &time, nullptr);
    mutex_.lock();
    sleeping_ = false;
    if (fds[0].revents != 0) drain(wake_fd_);
    if (rendezvous < count && fds[rendezvous].revents != 0 && !stop_) (void)session->poll_joiners();
  }
  for (size_t i = 0; i < armed; ++i) links[i].transport->disarm();
}

// Polls until done, `until`, or another caller's turn to look; sleeps when nothing has happened for a while.
template <typename Predicate>
void Runtime::drive(const Predicate& done, Nanos until, Nanos now) {
  const auto began = now;
  const auto& members = guarded_.members;
  const auto& yields = guarded_.yields;
  const auto spin = members.has_thin_links() ? 0 : yields ? 100 * microsecond : 60 * microsecond;
  auto last_progress = now;
  rests_on_links_ = false;  // what links have to write when this is over, the background thread does not know
  while (!stop_) {
    bool progress = guarded_.engine.poll(now);
    // Reading the clock costs as much as an empty poll; a few polls may share one reading. Not where packets come too seldom
    // for polling.
    for (int i = 0; i < polls_per_reading && !members.has_thin_links() && !progress && !yields &&
                    entering_.load(std::memory_order_relaxed) == 0;
         ++i)
      progress = guarded_.engine.poll(now);
    if (progress && waiters_ > 1) free_.notify_all();
    if (progress) run_notices();
    if (done(guarded_)) return;
    now = monotonic_now();
    if (now >= until) return;
    if (progress) last_progress = now;
    if (calling_.load(std::memory_order_relaxed) > 0 || (!progress && entering_.load(std::memory_order_relaxed) > 0)) {
      let_callers_in();
      now = monotonic_now();
    } else if (now - last_progress > spin) {
      sleep(until, members.has_thin_links() ? std::min((now - began) / rest_part, rest_max) : 0);
      now = last_progress = monotonic_now();
    } else if (yields && !progress) {
      sched_yield();
    }
    if (done(guarded_)) return;
  }
}

void Runtime::announce() {
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
  else if ((guarded_.engine.active() > 0 && resting_) || needs_links()) call_background();
  // A thread that was stopped, or kept from running, for longer than it wanted to wait looks once more before it judges.
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

// Looks while that is likely to be enough; true if it was.
bool Runtime::look_for(FastPath& fast_path) {
  for (int looks = 0; looks < (guarded_.yields ? fast_path_yields_max : fast_path_looks_max); ++looks) {
    const auto found = guarded_.engine.look(fast_path);
    if (found != FastPath::Found::nothing_yet) return found == FastPath::Found::all;
    if (entering_.load(std::memory_order_relaxed) > 0) return false;
    if (!guarded_.yields) continue;
    sched_yield();
    // One turn of the other processes may have taken longer than all looks should.
    if (monotonic_now() - fast_path.started > fast_path_time_max) return false;
  }
  return false;
}

Result<Report> Runtime::run_locked(GroupCore& group, OperationRequest&& request, uint64_t id) {
  const auto now = monotonic_now();
  const auto overdue = now + request.timeout + overdue_by;
  FastPath fast_path;
  const bool alone = !driving_ && waiters_ == 0;
  if (!alone || !guarded_.engine.begin_fast_path(fast_path, group, request, id, now)) {
    return outcome_locked(guarded_.engine.submit(group, std::move(request), id, now), overdue, now);
  }
  if (look_for(fast_path)) return guarded_.engine.report(fast_path, monotonic_now());
  const auto later = monotonic_now();
  return outcome_locked(guarded_.engine.take_over(fast_path, later), overdue, later);
}

Result<Report> Runtime::outcome_locked(std::shared_ptr<Completion> completion, Nanos overdue, Nanos now) {
  const auto done = [&](const GuardedState&) { return completion->done; };
  if (completion->done) {
    announce();
  } else if (!wait_locked(done, overdue, now) && !wait_locked(done, monotonic_now() + overdue_by, monotonic_now())) {
    // The wait is repeated once: a process that was stopped until after the deadline still has to exchange failures with its
    // peers.
    return Status(Code::internal, "an operation outlived its deadline");
  }
  auto outcome = completion->outcome();
  guarded_.engine.reuse(std::move(completion));
  run_notices();
  return outcome;
}

void Runtime::start_background() {
  if (background_.joinable()) return;
  background_ = std::thread([this] { background(); });
  pthread_setname_np(background_.native_handle(), "unisono");
}

// Sleeps until there is something to drive. Meanwhile it writes what links still have to write, and serves the rendezvous, so
// that the next re-forming knows which processes want to join.
void Runtime::rest() {
  auto* const session = guarded_.members.session();
  std::array<pollfd, wait_handles_max> fds{
      {{rest_fd_, POLLIN, 0}, {session != nullptr ? session->wait_handle() : -1, POLLIN, 0}}};
  nfds_t count = 2;
  bool idle = true;
  auto until = never;
  std::array<Transport*, wait_handles_max> draining{};
  for (const auto& link : guarded_.members.links()) {
    // The thread that drives does that, if there is one.
    if (driving_ || waiters_ > 0 || !link.transport->draining() || count == wait_handles_max) continue;
    idle &= link.transport->arm();
    until = std::min(until, link.transport->next_deadline());
    draining[count] = link.transport.get();
    fds[count++] = {link.transport->wait_handle(), POLLIN, 0};
  }
  const auto left = std::clamp<Nanos>(idle ? until - monotonic_now() : 0, 0, second);
  const timespec time{.tv_sec = left / second, .tv_nsec = left % second};
  const bool on_links = count > 2;
  resting_ = true;
  rests_on_links_ = on_links;
  mutex_.unlock();
  ::ppoll(fds.data(), count, on_links ? &time : nullptr, nullptr);
  pass_gate();
  resting_ = false;
  if (fds[0].revents != 0) {
    drain(rest_fd_);
    const bool needed = guarded_.engine.active() > 0 && waiters_ == 0 && !driving_;
    call_delay_ = needed ? call_delay_min : std::min(2 * call_delay_, call_delay_max);
  }
  if (on_links && !driving_ && !stop_) {
    for (nfds_t i = 2; i < count; ++i) draining[i]->disarm();
    guarded_.engine.poll(monotonic_now());
    run_notices();
  }
  if (fds[1].revents != 0 && !stop_) (void)session->poll_joiners();
}

void Runtime::background() {
  mutex_.lock();
  while (!stop_ && !orphaned_) {
    if (guarded_.engine.active() == 0 || waiters_ > 0 || driving_) {
      rest();
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

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
    : options_(options),
      self_(self),
      links_(std::move(links)),
      engine_(EngineLimits{}, compute_),
      wake_fd_(wake_fd),
      rest_fd_(rest_fd) {
  for (auto& link : links_) engine_.add_transport(*link.transport);
}

// The background thread may be the last to need it, where a notice held what had been let go of before: it goes on until it
// needs no more, too.
void Runtime::let_go(Runtime* runtime) {
  if (runtime->background_.get_id() != std::this_thread::get_id()) delete runtime;
  else runtime->orphaned_ = true;
}

Runtime::~Runtime() {
  // Who leaves takes along what others may still lack: they may be in the last collective yet, and wait for what was lost on
  // its way.
  const auto until = monotonic_now() + drain_time;
  const auto settled = [this] { return !engine_.has_pending(); };
  (void)wait(settled, until);
  locked([this] { part(); });
  (void)wait(settled, std::max(until, monotonic_now() + last_words_time));
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

void Runtime::part() {
  // What the others sent last is read before the links close, so that no reset overtakes our own last bytes.
  engine_.poll(monotonic_now());
  engine_.leave(monotonic_now());
  for (const auto peer : peers_) {
    if (peer == self_peer || !engine_.peer_status(peer).ok()) continue;
    for (auto& link : links_) {
      if (link.connector->state(peer) == LinkState::up) link.transport->close(peer);
    }
  }
}

Runtime::Entry::~Entry() {
  const bool undriven = runtime_.engine_.active() > 0 && !runtime_.driving_ && runtime_.waiters_ == 0;
  if ((undriven && runtime_.resting_) || runtime_.forgets_links()) runtime_.call_background();
  // A sleeping driver must learn of an earlier deadline, of what the kernel did not take at once, and of what ended in a poll
  // of somebody else.
  const bool earlier = runtime_.sleeping_ && (runtime_.engine_.next_deadline() < runtime_.sleeps_until_ ||
                                              runtime_.draining() || runtime_.ended() != runtime_.ended_before_sleep_);
  runtime_.announce();
  const auto notices = runtime_.take_notices();
  lock_.unlock();
  if (earlier) runtime_.wake();
  for (const auto& notice : notices) notice();
}

void Runtime::watch(std::shared_ptr<Completion> completion, std::function<void()> notice) {
  Entry entry(*this);
  watched_.emplace_back(std::move(completion), std::move(notice));
}

std::vector<std::function<void()>> Runtime::take_notices() {
  std::vector<std::function<void()>> notices;
  std::erase_if(watched_, [&](auto& watched) {
    if (watched.first->done) notices.push_back(std::move(watched.second));
    return watched.first->done;
  });
  return notices;
}

void Runtime::run_notices(std::unique_lock<std::mutex>& lock) {
  if (watched_.empty()) return;
  {
    const auto notices = take_notices();
    if (notices.empty()) return;
    lock.unlock();
    for (const auto& notice : notices) notice();
  }  // what they keep alive, whatever it takes to end that, goes without the mutex
  lock.lock();
}

// Of those whose link it is.
std::vector<PeerIndex> Runtime::served_by(const Link& link) const {
  std::vector<PeerIndex> served;
  for (const auto peer : peers_) {
    if (peer != self_peer && link.connector->state(peer) == LinkState::up) served.push_back(peer);
  }
  return served;
}

uint32_t Runtime::datagram_bytes() {
  uint32_t bytes = UINT32_MAX;
  for (const auto& link : links_) {
    const auto served = served_by(link);
    if (served.empty()) continue;
    const auto* datagrams = link.transport->datagrams();
    bytes = std::min(bytes, datagrams == nullptr ? 0 : datagrams->datagram_bytes(served));
  }
  return bytes == UINT32_MAX ? 0 : bytes;
}

bool Runtime::datagram_bytes_known() {
  return std::ranges::all_of(links_, [this](const auto& link) {
    const auto* datagrams = link.transport->datagrams();
    return datagrams == nullptr || datagrams->datagram_bytes_known(served_by(link));
  });
}

void Runtime::know_topology(const Topology& topology) {
  engine_.set_topology(topology);
  linked_hosts_ = hosts_of(roster_);
  const auto thin = [](const LinkProfile& link, bool measured) {
    return measured && packet_bytes / speed_of(link).bytes_per_us > thin_packet_us;
  };
  const auto self = static_cast<size_t>(std::find(peers_.begin(), peers_.end(), self_peer) - peers_.begin());
  const auto here = std::ranges::count(roster_.members, roster_.members.at(self).host, &MemberRecord::host);
  // All links that this rank has.
  thin_ = peers_.size() > 1 && (here == 1 || thin(topology.inside, topology.inside_measured)) &&
          (linked_hosts_.size() == 1 || thin(topology.between, topology.between_measured));
  topology_known_ = true;
}

HostLinks Runtime::known_links() const {
  const auto& links = engine_.topology().links;
  const auto hosts = hosts_of(roster_);
  HostLinks result(links.hosts == 0 ? 0 : static_cast<uint32_t>(hosts.size()));
  const auto number = [&](uint32_t host) {
    return static_cast<uint32_t>(std::find(linked_hosts_.begin(), linked_hosts_.end(), hosts[host]) - linked_hosts_.begin());
  };
  for (uint32_t b = 1; b < result.hosts; ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const auto was_a = number(a), was_b = number(b);
      if (std::max(was_a, was_b) < links.hosts) result.between(a, b) = links.between(was_a, was_b);
    }
  }
  return result;
}

void Runtime::set_local_world(uint32_t processes) {
  const auto cores = static_cast<uint32_t>(std::max(1u, std::thread::hardware_concurrency()));
  cpu_set_t set;
  CPU_ZERO(&set);
  const bool known = sched_getaffinity(0, sizeof(set), &set) == 0;
  const auto usable = known ? static_cast<uint32_t>(CPU_COUNT(&set)) : cores;
  yield_ = processes > cores || usable < 2;
  // Who trains on processors wants most of them for that, and a helper that has to share its core is worse than none.
  const uint32_t automatic = std::clamp(usable / std::max(1u, processes) / 4, 1u, 4u);
  compute_.share_cache(processes, cores);
  compute_.hire((options_.compute_threads != 0 ? options_.compute_threads : automatic) - 1);
}

void Runtime::wake() { notify(wake_fd_); }

uint64_t Runtime::ended() const { return engine_.counters().operations_ok + engine_.counters().operations_failed; }

bool Runtime::draining() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) { return link.transport->draining(); });
}

bool Runtime::forgets_links() const { return resting_ && !rests_on_links_ && draining(); }

void Runtime::call_background() {
  const auto now = monotonic_now();
  if (now < called_for_) return;
  called_for_ = now + call_delay_;
  set_timer(rest_fd_, call_delay_);
}

// rest: how long news of links may lie meanwhile.
void Runtime::sleep(std::unique_lock<std::mutex>& lock, Nanos until, Nanos rest) {
  std::array<pollfd, wait_handles_max> fds;
  nfds_t count = 0;
  fds[count++] = {wake_fd_, POLLIN, 0};
  size_t armed = 0;
  bool idle = true;
  for (; armed < links_.size() && idle; ++armed) idle = links_[armed].transport->arm();
  for (auto& link : links_) {
    if (link.transport->wait_handle() >= 0 && count < wait_handles_max)
      fds[count++] = {link.transport->wait_handle(), POLLIN, 0};
  }
  const auto rendezvous = count;
  if (!resting_ && session_ != nullptr && count < wait_handles_max) fds[count++] = {session_->wait_handle(), POLLIN, 0};
  if (idle && entering_.load(std::memory_order_relaxed) == 0) {
    const auto now = monotonic_now();
    engine_.observe_before_sleep(now);
    sleeps_until_ = std::min({until, engine_.next_deadline(), now + sleep_max});
    const auto left = std::max<Nanos>(0, sleeps_until_ - now);
    ended_before_sleep_ = ended();
    sleeping_ = true;
    lock.unlock();
    // Timers of links and operations may be late by that, too: on thin links the next datagram is always due.
    if (rest > 0 && left > 0) {
      const timespec first{.tv_sec = 0, .tv_nsec = std::min(rest, std::max<Nanos>(0, until - now))};
      ::ppoll(fds.data(), 1, &first, nullptr);
    }
    const auto later = rest < left ? left - rest : 0;
    const timespec time{.tv_sec = later / second, .tv_nsec = later % second};
    ::ppoll(fds.data(), count, &time, nullptr);
    lock.lock();
    sleeping_ = false;
    if (fds[0].revents != 0) drain(wake_fd_);
    if (rendezvous < count && fds[rendezvous].revents != 0 && !stop_) (void)session_->poll_joiners();
  }
  for (size_t i = 0; i < armed; ++i) links_[i].transport->disarm();
}

// Polls until done, `until`, or another caller's turn to look; sleeps when nothing has happened for a while.
template <typename Done>
void Runtime::drive(std::unique_lock<std::mutex>& lock, const Done& done, Nanos until, Nanos now) {
  const auto began = now;
  const auto spin = thin_ ? 0 : yield_ ? 100 * microsecond : 60 * microsecond;
  auto last_progress = now;
  rests_on_links_ = false;  // what is left to write when this is over, it does not know
  while (!stop_) {
    bool progress = engine_.poll(now);
    // Reading the clock costs as much as an empty poll; a few polls may share one reading. Not where packets come too seldom
    // for polling.
    for (int i = 0; i < polls_per_reading && !thin_ && !progress && !yield_ && entering_.load(std::memory_order_relaxed) == 0;
         ++i)
      progress = engine_.poll(now);
    if (progress && waiters_ > 1) free_.notify_all();
    if (progress) run_notices(lock);
    if (done()) return;
    now = monotonic_now();
    if (now >= until) return;
    if (progress) last_progress = now;
    if (calling_.load(std::memory_order_relaxed) > 0 || (!progress && entering_.load(std::memory_order_relaxed) > 0)) {
      give_way(lock);
      now = monotonic_now();
    } else if (now - last_progress > spin) {
      sleep(lock, until, thin_ ? std::min((now - began) / rest_part, rest_max) : 0);
      now = last_progress = monotonic_now();
    } else if (yield_ && !progress) {
      sched_yield();
    }
    if (done()) return;
  }
}

// A caller may want to begin another operation: it waits for a message or so to be worked on, not until there is nothing to do.
void Runtime::give_way(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  gate_.lock();  // until who is there has the mutex
  gate_.unlock();
  lock.lock();
}

std::unique_lock<std::mutex> Runtime::enter() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock.owns_lock()) return lock;
  calling_.fetch_add(1, std::memory_order_relaxed);
  pass_gate(lock);
  calling_.fetch_sub(1, std::memory_order_relaxed);
  return lock;
}

void Runtime::pass_gate(std::unique_lock<std::mutex>& lock) {
  entering_.fetch_add(1, std::memory_order_relaxed);
  gate_.lock();
  lock.lock();
  gate_.unlock();
  entering_.fetch_sub(1, std::memory_order_relaxed);
}

void Runtime::announce() {
  if (driving_ || waiters_ > 0) free_.notify_all();
}

template <typename Done>
bool Runtime::wait_locked(std::unique_lock<std::mutex>& lock, const Done& done, Nanos until, Nanos now) {
  ++waiters_;
  while (!done() && !stop_ && now < until) {
    if (!driving_) {
      driving_ = true;
      drive(lock, done, until, now);
      driving_ = false;
      if (done()) break;
    } else {
      if (sleeping_) wake();
      const auto left = std::min(until - now, sleep_max);
      free_.wait_for(lock, std::chrono::nanoseconds(std::max<Nanos>(left, 0)));
    }
    now = monotonic_now();
  }
  --waiters_;
  if (waiters_ > 0) free_.notify_all();
  else if ((engine_.active() > 0 && resting_) || forgets_links()) call_background();
  // Whoever was stopped, or kept from running, for longer than it wanted to wait hears the news before it judges.
  if (!done() && !stop_) engine_.poll(monotonic_now());
  run_notices(lock);
  return done();
}

bool Runtime::wait(const std::function<bool()>& done, Nanos until) {
  auto lock = enter();
  return wait_locked(lock, done, until, monotonic_now());
}

bool Runtime::wait(const Completion& completion, Nanos until) {
  auto lock = enter();
  return wait_locked(
      lock, [&] { return completion.done; }, until, monotonic_now());
}

Result<Report> Runtime::outcome(std::shared_ptr<Completion> completion, Nanos overdue) {
  auto lock = enter();
  return outcome(lock, std::move(completion), overdue, monotonic_now());
}

// Looks while that is likely to be enough; true if it was.
bool Runtime::look_for(FastPath& fast_path) {
  for (int looks = 0; looks < (yield_ ? fast_path_yields_max : fast_path_looks_max); ++looks) {
    const auto found = engine_.look(fast_path);
    if (found != FastPath::Found::nothing_yet) return found == FastPath::Found::all;
    if (entering_.load(std::memory_order_relaxed) > 0) return false;
    if (!yield_) continue;
    sched_yield();
    // One turn of the others may have taken longer than all looks should.
    if (monotonic_now() - fast_path.started > fast_path_time_max) return false;
  }
  return false;
}

Result<Report> Runtime::run(std::unique_lock<std::mutex>& lock, GroupCore& group, OperationRequest&& request, uint64_t id) {
  const auto now = monotonic_now();
  const auto overdue = now + request.timeout + overdue_by;
  FastPath fast_path;
  const bool alone = !driving_ && waiters_ == 0;
  if (!alone || !engine_.begin_fast_path(fast_path, group, request, id, now)) {
    return outcome(lock, engine_.submit(group, std::move(request), id, now), overdue, now);
  }
  if (look_for(fast_path)) return engine_.report(fast_path, monotonic_now());
  const auto later = monotonic_now();
  return outcome(lock, engine_.take_over(fast_path, later), overdue, later);
}

Result<Report> Runtime::outcome(std::unique_lock<std::mutex>& lock, std::shared_ptr<Completion> completion, Nanos overdue,
                                Nanos now) {
  const auto done = [&] { return completion->done; };
  if (done()) {
    announce();
  } else if (!wait_locked(lock, done, overdue, now) &&
             !wait_locked(lock, done, monotonic_now() + overdue_by, monotonic_now())) {
    // Twice: a process that was stopped until after the deadline has its last words with the others still before it.
    return Status(Code::internal, "an operation outlived its deadline");
  }
  auto outcome = completion->outcome();
  engine_.reuse(std::move(completion));
  run_notices(lock);
  return outcome;
}

void Runtime::start_background() {
  if (background_.joinable()) return;
  background_ = std::thread([this] { background(); });
  pthread_setname_np(background_.native_handle(), "unisono");
}

// Until there is something to drive; meanwhile what is still to be written is written, and the rendezvous is served, so that
// who wants to join is known at the next re-forming.
void Runtime::rest(std::unique_lock<std::mutex>& lock) {
  std::array<pollfd, wait_handles_max> fds{
      {{rest_fd_, POLLIN, 0}, {session_ != nullptr ? session_->wait_handle() : -1, POLLIN, 0}}};
  nfds_t count = 2;
  bool idle = true;
  auto until = never;
  std::array<Transport*, wait_handles_max> draining{};
  for (auto& link : links_) {
    // While somebody drives, that is his to do.
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
  lock.unlock();
  ::ppoll(fds.data(), count, on_links ? &time : nullptr, nullptr);
  pass_gate(lock);
  resting_ = false;
  if (fds[0].revents != 0) {
    drain(rest_fd_);
    const bool needed = engine_.active() > 0 && waiters_ == 0 && !driving_;
    call_delay_ = needed ? call_delay_min : std::min(2 * call_delay_, call_delay_max);
  }
  if (on_links && !driving_ && !stop_) {
    for (nfds_t i = 2; i < count; ++i) draining[i]->disarm();
    engine_.poll(monotonic_now());
    run_notices(lock);
  }
  if (fds[1].revents != 0 && !stop_) (void)session_->poll_joiners();
}

void Runtime::background() {
  std::unique_lock lock(mutex_);
  while (!stop_ && !orphaned_) {
    if (engine_.active() == 0 || waiters_ > 0 || driving_) {
      rest(lock);
      continue;
    }
    driving_ = true;
    drive(
        lock, [this] { return waiters_ > 0 || engine_.active() == 0 || orphaned_; }, never, monotonic_now());
    driving_ = false;
    free_.notify_all();
  }
  if (!orphaned_) return;
  lock.unlock();
  background_.detach();
  delete this;
}

}  // namespace unisono

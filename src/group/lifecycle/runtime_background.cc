// The thread of a Runtime that works while no other thread does: it drives operations for which nobody waits, looks after the
// links, and serves the rendezvous.
#include <poll.h>
#include <pthread.h>

#include <algorithm>
#include <array>

#include "group/lifecycle/runtime.h"
#include "group/lifecycle/wake_descriptors.h"

namespace unisono {

void Runtime::wake_background() {
  const auto now = monotonic_now();
  if (now < background_wake_at_) return;
  background_wake_at_ = now + background_delay_;
  set_timer(timer_fd_, background_delay_);
}

// While no thread uses the links, the background thread watches those that are draining, and polls now and then for those that
// await confirmations. While threads call operations again and again, it costs them almost nothing: it only sees that there was
// a call, and sleeps on.
void Runtime::rouse_background() {
  calls_.store(calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (!background_sleeping_) return;
  const bool undriven = guarded_.engine.active() > 0 && !driving_ && waiters_ == 0;
  if (undriven || (!background_watches_links_ && draining())) return wake_background();
  if (background_watches_links_ || background_tick_ == background_tick_min || !awaits_confirmations()) return;
  background_tick_ = background_tick_min;
  set_timer(timer_fd_, background_tick_);
}

bool Runtime::awaits_confirmations() const {
  return std::ranges::any_of(guarded_.members.links(), [](const Link& link) { return link.transport->awaits_confirmations(); });
}

void Runtime::start_background() {
  if (background_.joinable()) return;
  background_ = std::thread([this] { background(); });
  pthread_setname_np(background_.native_handle(), "unisono");
}

void Runtime::serve_rendezvous(bool readable) {
  auto* const session = guarded_.members.session();
  if (stop_ || session == nullptr) return;
  const auto deadline = session->next_deadline();
  if (readable || (deadline != never && deadline <= monotonic_now())) (void)session->poll_joiners();
}

bool Runtime::rendezvous_changed() const {
  const auto* const session = guarded_.members.session();
  return background_sleeping_ && session != nullptr &&
         (session->wait_handle() != background_rendezvous_ || session->next_deadline() < background_rendezvous_deadline_);
}

// The time background_tick_ has passed.
void Runtime::tick(bool busy) {
  const bool driven = driving_ || waiters_ > 0;
  if (!driven && !stop_) {
    guarded_.engine.poll(monotonic_now());
    run_notices();
  }
  if (!busy) background_tick_ = awaits_confirmations() ? std::min(2 * background_tick_, background_tick_max) : 0;
}

// Sleeps until there is something to drive. Meanwhile it writes the bytes that links still have to write, and serves the
// rendezvous, so that the next re-forming knows which processes want to join.
void Runtime::background_sleep() {
  auto* const session = guarded_.members.session();
  background_rendezvous_ = session != nullptr ? session->wait_handle() : -1;
  background_rendezvous_deadline_ = session != nullptr ? session->next_deadline() : never;
  std::array<pollfd, wait_handles_max> fds{{{timer_fd_, POLLIN, 0}, {background_rendezvous_, POLLIN, 0}}};
  nfds_t count = 2;
  bool idle = true;
  auto until = background_rendezvous_deadline_;
  std::array<Transport*, wait_handles_max> watched{};
  bool on_links = false;
  const bool driven = driving_ || waiters_ > 0;
  // A driver handles what the idle handle reports, but not at once. Meanwhile it must not wake this thread again and again.
  const bool pauses = std::exchange(idle_handle_was_ready_, false) && driven;
  if (pauses) until = std::min(until, monotonic_now() + idle_pause);
  for (const auto& link : guarded_.members.links()) {
    if (count == wait_handles_max) break;
    auto& transport = *link.transport;
    watched[count] = &transport;
    // If another thread drives, that thread writes the bytes of the links.
    if (!driven && transport.draining()) {
      on_links = true;
      idle &= transport.arm();
      until = std::min(until, transport.next_deadline());
      fds[count++] = {transport.wait_handle(), POLLIN, 0};
    } else if (!pauses && transport.idle_handle() >= 0) {
      fds[count++] = {transport.idle_handle(), POLLIN, 0};
    }
  }
  const auto now = monotonic_now();
  const bool ticks = !on_links && background_tick_ > 0 && now + background_tick_ < until;
  if (ticks) until = now + background_tick_;
  const auto left = std::clamp<Nanos>(idle ? until - now : 0, 0, second);
  const timespec time{.tv_sec = left / second, .tv_nsec = left % second};
  const bool timed = on_links || until != never;
  background_sleeping_ = true;
  background_watches_links_ = on_links;
  mutex_.unlock();
  bool busy = false, woken = false;
  for (bool again = true; again;) {
    const auto calls = calls_.load(std::memory_order_relaxed);
    woken = ::ppoll(fds.data(), count, timed ? &time : nullptr, nullptr) != 0;
    busy = calls_.load(std::memory_order_relaxed) != calls;
    again = ticks && busy && !woken;
  }
  pass_gate();
  background_sleeping_ = false;
  if (fds[0].revents != 0) {
    drain(timer_fd_);
    const bool needed = guarded_.engine.active() > 0 && waiters_ == 0 && !driving_;
    background_delay_ = needed ? background_delay_min : std::min(2 * background_delay_, background_delay_max);
  }
  if (background_tick_ > 0 && (!woken || fds[0].revents != 0)) tick(busy);
  bool ready = on_links;
  for (nfds_t i = 2; i < count; ++i) ready |= fds[i].revents != 0;
  idle_handle_was_ready_ = ready && !on_links;
  if (ready && !driving_ && !stop_) {
    for (nfds_t i = 2; i < count; ++i) watched[i]->disarm();
    guarded_.engine.poll(monotonic_now());
    run_notices();
  }
  serve_rendezvous(fds[1].revents != 0);
}

}  // namespace unisono

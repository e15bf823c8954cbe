#include "torch_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <utility>

namespace unisono::torch_backend {
namespace {

// The state of the pool whose task this thread runs. It is only compared.
thread_local const void* pool_of_this_thread = nullptr;

}  // namespace

CallbackPool::~CallbackPool() {
  if (owner_.forked()) (void)new auto(std::move(threads_));  // they cannot be joined
  else without_gil([this] { close(); });
}

void CallbackPool::run(std::function<void()> task) { push(std::unique_lock(state_->mutex), std::move(task)); }

// Gives the task to a thread. If no thread could be started, and all existing threads may be waiting for this task, runs it
// here.
void CallbackPool::push(std::unique_lock<std::mutex> lock, std::function<void()> task) {
  auto& state = *state_;
  const bool needs_thread = !state.closed && state.idle <= state.tasks.size();
  bool here = state.closed;
  if (needs_thread) {
    try {
      threads_.emplace_back([shared = state_] { work(*shared); });
      ::pthread_setname_np(threads_.back().native_handle(), "unisono-torch");
    } catch (const std::system_error&) {
      here = true;
    }
  }
  if (!here) {
    state.tasks.push_back(std::move(task));
    state.task_pushed.notify_one();
    return;
  }
  const auto shared = state_;  // the task may own the last reference to the pool
  const auto* const before = std::exchange(pool_of_this_thread, shared.get());
  ++shared->running;
  lock.unlock();
  task();
  task = {};
  lock.lock();
  --shared->running;
  shared->changed.notify_all();
  lock.unlock();
  pool_of_this_thread = before;
}

void CallbackPool::run_after(const std::vector<unisono::Work>& operations, bool needed, std::function<void()> task) {
  if (operations.empty()) return run(std::move(task));
  uint64_t ticket = 0;
  {
    const std::lock_guard lock(state_->mutex);
    ticket = ++state_->last_ticket;
    state_->waiting.emplace(ticket, Waiting{std::move(task), needed});
  }
  const auto left = std::make_shared<std::atomic<size_t>>(operations.size());
  for (const auto& operation : operations) {
    operation.notify([self = shared_from_this(), left, ticket] {
      if (--*left == 0) self->release(ticket);
    });
  }
}

void CallbackPool::release(uint64_t ticket) {
  std::unique_lock lock(state_->mutex);
  auto waiting = state_->waiting.extract(ticket);
  push(std::move(lock), std::move(waiting.mapped().task));
}

void CallbackPool::work(State& state) {
  pool_of_this_thread = &state;
  const unisono_python::PythonThread python;  // tasks run callbacks, and free tensors
  std::unique_lock lock(state.mutex);
  for (;;) {
    ++state.idle;
    state.task_pushed.wait(lock, [&] { return state.closed || !state.tasks.empty(); });
    --state.idle;
    if (state.tasks.empty()) return;
    auto task = std::move(state.tasks.front());
    state.tasks.pop_front();
    ++state.running;
    lock.unlock();
    task();
    task = {};  // this is done without the lock, because the task may own the last reference to the pool
    lock.lock();
    --state.running;
    state.changed.notify_all();
  }
}

template <typename Condition>
bool CallbackPool::wait(Clock::time_point until, Condition&& condition) {
  auto& state = *state_;
  std::unique_lock lock(state.mutex);
  const size_t inside = pool_of_this_thread == &state ? 1 : 0;
  state.in_waits += inside;
  state.changed.notify_all();
  const bool met = state.changed.wait_until(
      lock, until, [&] { return state.tasks.empty() && state.running <= state.in_waits && condition(state.waiting); });
  state.in_waits -= inside;
  return met;
}

bool CallbackPool::wait_idle(Clock::time_point until) {
  return wait(until, [](const auto& waiting) {
    return std::ranges::none_of(waiting, [](const auto& one) { return one.second.needed; });
  });
}

bool CallbackPool::idle() const {
  const std::lock_guard lock(state_->mutex);
  return state_->tasks.empty() && state_->running == 0;
}

void CallbackPool::close() {
  (void)wait(Clock::now() + std::chrono::hours(24 * 365), [](const auto& waiting) { return waiting.empty(); });
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    threads.swap(threads_);
    state_->task_pushed.notify_all();
  }
  join_all(threads);
}

void CallbackPool::join_all(std::vector<std::thread>& threads) {
  for (auto& thread : threads) {
    // This happens if a task of this thread held the last reference to the pool: a thread cannot join itself.
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();
    else thread.join();
  }
}

}  // namespace unisono::torch_backend

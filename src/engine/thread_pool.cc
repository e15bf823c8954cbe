#include "engine/thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <system_error>

namespace unisono {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto spin_time = std::chrono::microseconds(50);  // how long a helper spins for the next call before it sleeps
constexpr int looks_per_reading = 64;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  calls_.fetch_add(1);
  calls_.notify_all();
  for (auto& thread : threads_) thread.join();
}

void ThreadPool::set_helpers(uint32_t helpers) {
  // Block all signals in helpers, because the program's own threads must handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    threads_.reserve(helpers);
    while (threads_.size() < helpers) {
      threads_.emplace_back([this] { helper_loop(); });
      pthread_setname_np(threads_.back().native_handle(), thread_name);
    }
  } catch (const std::system_error&) {}
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::parallel_for(const Job& job) {
  job_ = job;
  unfinished_.store(job.pieces, std::memory_order_relaxed);
  untaken_.store(job.pieces, std::memory_order_release);
  // Both accesses are sequentially consistent. If a helper is about to sleep, then either it sees this call, or this thread
  // sees it in asleep_.
  calls_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) calls_.notify_all();
  while (run_one_piece()) {}
  for (int looks = 0; unfinished_.load(std::memory_order_acquire) > 0; ++looks) {
    // Yield after a while, because the thread with the last piece may not be running.
    if (looks < 1000) pause();
    else std::this_thread::yield();
  }
}

bool ThreadPool::run_one_piece() {
  auto left = untaken_.load(std::memory_order_acquire);
  do {
    if (left == 0) return false;
  } while (!untaken_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  job_.call(job_.work, job_.pieces - left);
  unfinished_.fetch_sub(1, std::memory_order_release);
  return true;
}

void ThreadPool::helper_loop() {
  for (;;) {
    // Read calls_ before stop_. The destructor sets stop_ before it increments calls_. If a helper misses stop_ here, it
    // therefore sees later that calls_ has changed, and does not sleep for ever.
    const auto seen = calls_.load(std::memory_order_seq_cst);
    if (stop_.load(std::memory_order_seq_cst)) return;
    while (run_one_piece()) {}
    const auto until = Clock::now() + spin_time;
    bool called = false;
    for (uint32_t looks = 1; !called && (looks % looks_per_reading != 0 || Clock::now() < until); ++looks) {
      called = calls_.load(std::memory_order_relaxed) != seen;
      if (!called) pause();
    }
    if (called) continue;
    asleep_.fetch_add(1, std::memory_order_seq_cst);
    calls_.wait(seen, std::memory_order_seq_cst);
    asleep_.fetch_sub(1, std::memory_order_relaxed);
  }
}

}  // namespace unisono

#include "engine/thread_pool.h"

#include <pthread.h>

#include <chrono>
#include <csignal>
#include <system_error>

namespace unisono {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto attention = std::chrono::microseconds(50);  // how long a helper looks for the next call before it sleeps
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

void ThreadPool::hire(uint32_t helpers) {
  // Signals are for the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    threads_.reserve(helpers);
    while (threads_.size() < helpers) {
      threads_.emplace_back([this] { help(); });
      pthread_setname_np(threads_.back().native_handle(), thread_name);
    }
  } catch (const std::system_error&) {}
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void ThreadPool::share(const Job& job) {
  job_ = job;
  undone_.store(job.pieces, std::memory_order_relaxed);
  left_.store(job.pieces, std::memory_order_release);
  // Either a helper that goes to sleep sees this call, or it is seen here that one sleeps.
  calls_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst) > 0) calls_.notify_all();
  while (do_a_piece()) {}
  for (int looks = 0; undone_.load(std::memory_order_acquire) > 0; ++looks) {
    // The thread that does the last piece may have lost its processor.
    if (looks < 1000) pause();
    else std::this_thread::yield();
  }
}

bool ThreadPool::do_a_piece() {
  auto left = left_.load(std::memory_order_acquire);
  do {
    if (left == 0) return false;
  } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
  job_.call(job_.work, job_.pieces - left);
  undone_.fetch_sub(1, std::memory_order_release);
  return true;
}

void ThreadPool::help() {
  for (;;) {
    // In this order: the destructor sets stop_ before it counts up calls_ for the last time.
    const auto seen = calls_.load(std::memory_order_seq_cst);
    if (stop_.load(std::memory_order_seq_cst)) return;
    while (do_a_piece()) {}
    const auto until = Clock::now() + attention;
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

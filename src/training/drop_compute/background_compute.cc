#include "training/drop_compute/background_compute.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/concat.h"

namespace unisono::internal {
namespace {

std::chrono::steady_clock::time_point time_of(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

Result<std::unique_ptr<BackgroundCompute>> BackgroundCompute::make(size_t elements, const Now& now) {
  try {
    std::unique_ptr<BackgroundCompute> made(new BackgroundCompute(elements, now));
    made->thread_ = std::thread([raw = made.get()] { raw->run_thread(); });
    return made;
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable, concat("out of memory: the rule at needs a second buffer of ", elements, " gradients"));
  } catch (const std::system_error& error) {
    return Status(Code::unavailable, std::string("cannot start a thread for the rule at: ") + error.what());
  }
}

BackgroundCompute::~BackgroundCompute() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    controller_ = nullptr;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void BackgroundCompute::start(DropController& controller, Step step) {
  {
    const std::lock_guard lock(mutex_);
    controller_ = &controller;
    step_ = std::move(step);
    status_ = {};
    busy_ = true;
  }
  changed_.notify_all();
}

void BackgroundCompute::run_thread() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || stopping_; });
    if (!busy_) return;
    compute(lock);
    busy_ = false;
    changed_.notify_all();
  }
}

// Computes micro-batches until the controller stops the step. The mutex is unlocked while the user's function runs.
void BackgroundCompute::compute(std::unique_lock<std::mutex>& lock) {
  while (controller_ != nullptr && !controller_->stopped()) {
    const uint64_t position = step_.position + controller_->computed();
    lock.unlock();
    auto status = step_.compute(position, second_);
    lock.lock();
    // A micro-batch counts only if it ended before the timer expired. This thread checks the time itself, because the calling
    // thread may wake up late and call timer() after this micro-batch was counted.
    const auto now = now_();
    if (controller_ != nullptr && controller_->timer_ns().value_or(now) < now) controller_->timer(now);
    if (controller_ != nullptr && !controller_->stopped()) {
      if (status.ok()) {
        for (size_t i = 0; i < second_.size(); ++i) step_.gradients[i] += second_[i];
        controller_->micro_batch_done(now);
      } else {
        status_ = std::move(status);
        controller_->abandon();
      }
    }
    std::fill(second_.begin(), second_.end(), 0.0f);
  }
}

Status BackgroundCompute::close() {
  std::unique_lock lock(mutex_);
  const auto stopped = [this] { return controller_->stopped(); };
  if (const auto timer = controller_->timer_ns()) {
    // The background thread notifies this thread only once, when all micro-batches have ended. Therefore a step in which
    // nothing is dropped wakes this thread only once.
    changed_.wait_until(lock, time_of(*timer), [this] { return !busy_; });
    if (!stopped()) controller_->timer(std::max(now_(), *timer));
  } else {
    changed_.wait(lock, [this] { return !busy_; });
  }
  controller_ = nullptr;
  return std::exchange(status_, Status());
}

bool BackgroundCompute::wait_idle_until(std::optional<int64_t> time_ns) {
  std::unique_lock lock(mutex_);
  const auto idle = [this] { return !busy_; };
  if (time_ns) return changed_.wait_until(lock, time_of(*time_ns), idle);
  changed_.wait(lock, idle);
  return true;
}

}  // namespace unisono::internal

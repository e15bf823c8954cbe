#include "training/drop_compute/background_compute.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <utility>

namespace unisono::internal {
namespace {

std::chrono::steady_clock::time_point time_of(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

}  // namespace

Result<std::unique_ptr<BackgroundCompute>> BackgroundCompute::make(size_t elements, const Now& now) {
  try {
    std::unique_ptr<BackgroundCompute> made(new BackgroundCompute(elements, now));
    made->thread_ = std::thread([raw = made.get()] { raw->serve(); });
    return made;
  } catch (const std::bad_alloc&) {
    return Status(Code::unavailable,
                  "out of memory for the second gradients of the rule at: " + std::to_string(elements) + " values");
  } catch (const std::system_error& error) {
    return Status(Code::unavailable, std::string("no thread for the rule at: ") + error.what());
  }
}

BackgroundCompute::~BackgroundCompute() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
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

void BackgroundCompute::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || ends_; });
    if (!busy_) return;
    compute(lock);
    busy_ = false;
    changed_.notify_all();
  }
}

// Runs the user's code without the lock.
void BackgroundCompute::compute(std::unique_lock<std::mutex>& lock) {
  while (controller_ != nullptr && !controller_->stopped()) {
    const uint64_t position = step_.position + controller_->computed();
    lock.unlock();
    auto status = step_.compute(position, second_);
    lock.lock();
    // A micro-batch that ended by the timer's time counts, even if the timer's thread is late.
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
    // The background thread notifies the calling thread only when it has finished, so a step without drops costs
    // one wake-up.
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

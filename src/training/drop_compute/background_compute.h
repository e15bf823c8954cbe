// Computes micro-batches for the stop rule `at` (a step ends when its timer expires). The second thread computes each
// micro-batch into a second buffer. When the step closes, it uses the micro-batches that have ended by then. A micro-batch may
// still be running at that time: the thread discards its gradients and becomes idle when it ends.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "training/drop_compute/drop_controller.h"
#include "unisono/drop_compute.h"

namespace unisono::internal {

class BackgroundCompute {
 public:
  using Now = std::function<int64_t()>;  // The function reads a steady clock and returns ns.
  // Returns unavailable if memory or a thread cannot be allocated.
  static Result<std::unique_ptr<BackgroundCompute>> make(size_t elements, const Now& now);
  ~BackgroundCompute();  // The destructor waits until the running micro-batch has ended.

  // start() makes the thread compute micro-batches and add their gradients to `gradients`, until the controller stops the step.
  // Call start() only while the thread is idle. The thread uses the controller and `gradients` until close() returns. The
  // thread may still run the function `compute` after close(), until it is idle.
  struct Step {
    std::span<float> gradients;
    std::function<Status(uint64_t position, std::span<float> gradients)> compute;
    uint64_t position = 0;
  };
  void start(DropController& controller, Step step);
  // Waits until all micro-batches of the step have ended, or until the timer has expired. After this call, the thread no longer
  // uses the controller and the gradients.
  Status close();
  size_t elements() const { return second_.size(); }
  // Waits until the thread is idle. If time_ns is given, waits no longer than until that time. Returns whether the thread is
  // idle.
  bool wait_idle_until(std::optional<int64_t> time_ns);

 private:
  BackgroundCompute(size_t elements, const Now& now) : now_(now), second_(elements) {}
  void run_thread();
  void compute(std::unique_lock<std::mutex>& lock);

  const Now now_;
  std::vector<float> second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DropController* controller_ = nullptr;  // The pointer is null between close() and the next start().
  Step step_;
  Status status_;
  bool busy_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace unisono::internal

// Computes micro-batches in a second thread, into a second buffer, for the rule `at`. Micro-batches that are complete when the
// step closes count. The running one is lost, and the thread is free again when it ends.
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
  using Now = std::function<int64_t()>;  // steady clock, ns
  // unavailable: no memory, or no thread.
  static Result<std::unique_ptr<BackgroundCompute>> make(size_t elements, const Now& now);
  ~BackgroundCompute();  // waits for the running micro-batch

  // Computes micro-batches until the controller stops, and adds each to `gradients`. Call only while idle. The thread uses
  // controller and gradients until close(), and `compute` until it is idle again.
  struct Step {
    std::span<float> gradients;
    std::function<Status(uint64_t position, std::span<float> gradients)> compute;
    uint64_t position = 0;
  };
  void start(DropController& controller, Step step);
  // Waits until the step's micro-batches are computed, or its timer expires. Afterwards the caller owns controller and
  // gradients again.
  Status close();
  size_t elements() const { return second_.size(); }
  // Waits until nothing runs, or until the given time. Returns whether nothing runs.
  bool wait_idle_until(std::optional<int64_t> time_ns);

 private:
  BackgroundCompute(size_t elements, const Now& now) : now_(now), second_(elements) {}
  void serve();
  void compute(std::unique_lock<std::mutex>& lock);

  const Now now_;
  std::vector<float> second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  DropController* controller_ = nullptr;  // null: the step is closed
  Step step_;
  Status status_;
  bool busy_ = false, ends_ = false;
  std::thread thread_;
};

}  // namespace unisono::internal

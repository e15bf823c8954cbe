// One operation as torch sees it (c10d::Work).
//
// A thread that waits for the operation also makes it progress and completes it. If somebody has asked for a future, then, when
// the operation has ended, a thread of the pool runs the callbacks of the future. While the thread in which Python handles
// signals waits, it runs their handlers.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch_pool.h"
#include "torch_waiting.h"
#include "unisono/group.h"

namespace unisono::torch_backend {

// The classes of exceptions that torch expects: TimedOut if a deadline has passed, otherwise DistBackendError.
class TimedOut : public c10::DistBackendError {
 public:
  using c10::DistBackendError::DistBackendError;
};
std::exception_ptr exception_of(const Status& status, const std::string& what);
// Returns a future whose value is a c10d::WorkResult: the outcome of the operation.
c10::intrusive_ptr<c10::ivalue::Future> result_of(const c10::intrusive_ptr<c10::ivalue::Future>& future);

// Waits for the operation for at most this time. Returns whether it has ended.
bool wait_for(unisono::Work& operation, Clock::duration time);

// Is called once for each operation that has ended.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void ended(const Status& status, const Report& report) = 0;
};

struct WorkSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;                  // what profilers show, such as "unisono:all_reduce"
  std::vector<at::Tensor> inputs{}, outputs{};  // `inputs` are for profilers, and `outputs` are the value of the future
  std::vector<at::Tensor> kept{};               // the engine uses this memory until the operation is done
  // These functions copy results to the caller's tensors. They are called after all parts have succeeded.
  std::vector<std::function<void()>> copies{};
  uint64_t sequence = 0, identity = 0;
  std::shared_ptr<CallbackPool> pool{};
  std::shared_ptr<Listener> listener{};
};

// The outcome of an operation. It is set by the first thread that notices that the operation has ended. Until then, the pool
// keeps this object alive if no thread will wait. No thread of the library ever owns it: to free a tensor, a thread may need
// the GIL, and while Python ends, a thread that asks for the GIL crashes the process.
class Outcome : public std::enable_shared_from_this<Outcome> {
 public:
  Outcome(WorkSetup setup, std::vector<unisono::Work> parts) : setup_(std::move(setup)), parts_(std::move(parts)) {}
  ~Outcome();

  const WorkSetup& setup() const { return setup_; }
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // Returns true in a forked child. The functions that take a lock must not be called there.
  bool forked() const { return setup_.pool != nullptr && setup_.pool->owner().forked(); }
  // Throws an error in a forked child.
  void check_process() const;
  // Returns whether other ranks may need this operation. A receive is needed by this rank only. A coalesced call is not needed
  // itself, because each of its operations has an outcome of its own.
  bool is_needed() const;
  // Returns whether all parts have ended.
  bool over() const;
  // If all parts have ended, sets the outcome. Returns whether there is an outcome.
  bool poll();
  // Waits until all parts have ended, and sets the outcome. A timeout of zero means that there is no limit. Returns an error if
  // the timeout has passed. Runs the handlers of signals meanwhile, and throws what they raise; the operation then continues.
  Status wait(std::chrono::milliseconds timeout);
  // Waits like wait(), but runs no handlers of signals.
  void complete();
  void settle(const Status& status, const Report& report);
  // Returns the error of the operation. It is null if the operation has succeeded or has not ended.
  std::exception_ptr error() const { return settled() ? error_ : nullptr; }
  Report report() const { return settled() ? report_ : Report{}; }
  // When the operation has ended, calls `then`, and after that completes the future.
  void promise(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::function<void()> then);
  // Call this if no thread will wait for the operation. Then a thread of the pool sets the outcome.
  void detach();

 private:
  void fulfil();
  std::vector<unisono::Work> parts() const;

  WorkSetup setup_;
  mutable std::mutex mutex_;
  // Empty once the outcome is set, because a part may hold the last handle of the group.
  std::vector<unisono::Work> parts_;
  std::atomic<bool> settled_{false};  // once this is true, none of the members below changes, except futures_
  std::exception_ptr error_;
  Report report_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
};

class TorchWork final : public c10d::Work {
 public:
  // The operation has ended when all its parts have ended.
  TorchWork(WorkSetup setup, std::vector<unisono::Work> parts);
  // Makes the Work for an operation that has already ended, and that profilers have not seen.
  TorchWork(WorkSetup setup, Result<Report> outcome);
  // Makes the Work for an operation that has ended, and that profilers have not seen.
  explicit TorchWork(std::shared_ptr<Outcome> outcome);
  ~TorchWork() override;

  bool isCompleted() override;
  bool isSuccess() const override { return outcome_->settled() && outcome_->error() == nullptr; }
  std::exception_ptr exception() const override { return outcome_->error(); }
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return outcome_->setup().outputs; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override { return static_cast<float>(outcome_->report().total_us) / 1000; }
  uint64_t getSequencenumber() const override { return outcome_->setup().sequence; }
  // The number by which ranks match the calls that are made in callbacks of this operation.
  uint64_t identity() const { return outcome_->setup().identity; }
  static std::vector<at::Device> devices() { return {}; }
  // When the operation has ended, completes the given future instead of a new one.
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  // Returns the report of the first part.
  Report report() const { return outcome_->report(); }
  const std::shared_ptr<Outcome>& outcome() const { return outcome_; }

 private:
  void end_record();

  const std::shared_ptr<Outcome> outcome_;
  std::atomic<bool> recorded_{false};
};

}  // namespace unisono::torch_backend

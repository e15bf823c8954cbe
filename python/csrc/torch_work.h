// One operation as torch sees it (c10d::Work), and the threads that complete futures.
//
// A waiting thread drives the operation and finishes it itself. Only if a future was requested, a thread of the pool wakes when
// the operation has ended, and runs the future's callbacks. Such a callback may wait for another future, so the pool grows.
#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "unisono/group.h"

namespace unisono::torch_backend {

// Runs the task without the GIL, if this thread holds it.
void without_gil(const std::function<void()>& task);

// Threads for long tasks. The last owner's release ends the pool after all its tasks; if a task is that owner, before its
// thread ends.
class CallbackPool {
 public:
  ~CallbackPool();
  void run(std::function<void()> task);
  // Waits until all tasks are done. Later tasks run on the thread that submits them.
  void close();

 private:
  struct State {  // owned by the threads
    std::mutex mutex;
    std::condition_variable given;
    std::deque<std::function<void()>> tasks;
    size_t idle = 0;
    bool closed = false;
  };
  static void work(State& state);
  static void join_all(std::vector<std::thread>& threads);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::thread> threads_;  // guarded by the state's mutex
};

// Errors as torch's exceptions: DistBackendError, and TimedOut for deadlines.
class TimedOut : public c10::DistBackendError {
 public:
  using c10::DistBackendError::DistBackendError;
};
std::exception_ptr exception_of(const Status& status, const std::string& what);
// The future of an operation's outcome as a number: c10d::WorkResult.
c10::intrusive_ptr<c10::ivalue::Future> result_of(const c10::intrusive_ptr<c10::ivalue::Future>& future);

// Is notified once of each operation that has ended.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void ended(const Status& status, const Report& report) = 0;
};

struct WorkSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;                  // for profilers: "unisono:all_reduce"
  std::vector<at::Tensor> inputs{}, outputs{};  // inputs: for profilers; outputs: the future's value
  std::vector<at::Tensor> kept{};               // memory that the engine uses until the operation is done
  std::vector<std::function<void()>> copies{};  // copy results to their destination, after all parts have succeeded
  uint64_t sequence = 0, identity = 0;
  std::shared_ptr<CallbackPool> pool{};
  std::shared_ptr<Listener> listener{};
};

// An operation's outcome, made once by the first thread that notices its end. It keeps itself and all memory of the operation
// alive until then.
class Outcome : public std::enable_shared_from_this<Outcome> {
 public:
  Outcome(WorkSetup setup, std::vector<unisono::Work> parts) : setup_(std::move(setup)), parts_(std::move(parts)) {}
  ~Outcome();

  const WorkSetup& setup() const { return setup_; }
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // True if all parts have ended.
  bool over() const;
  // Makes the outcome if all parts have ended.
  bool look();
  // Waits for all parts and makes the outcome; zero: without limit. Error: the time is over.
  Status wait(std::chrono::milliseconds timeout);
  void settle(const Status& status, const Report& report);
  // The error of a settled outcome; none before.
  std::exception_ptr error() const { return settled() ? error_ : nullptr; }
  Report report() const { return settled() ? report_ : Report{}; }
  // The operation completes this future.
  void promise(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::function<void()> then);
  // No thread waits for it any more.
  void let_go();

 private:
  void complete();
  void fulfil();
  void when_over(std::function<void()> task);

  WorkSetup setup_;
  std::vector<unisono::Work> parts_;  // constant
  std::mutex mutex_;
  std::atomic<bool> settled_{false};  // once true, the members below are constant
  std::exception_ptr error_;
  Report report_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
};

class TorchWork final : public c10d::Work {
 public:
  // parts: all of them must end.
  TorchWork(WorkSetup setup, std::vector<unisono::Work> parts);
  // For an operation that has already ended, and that no profiler watched.
  TorchWork(WorkSetup setup, Result<Report> outcome);
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
  // Matches calls of its callbacks between ranks.
  uint64_t identity() const { return outcome_->setup().identity; }
  static std::vector<at::Device> devices() { return {}; }
  // The operation completes this future instead of one of its own.
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  // The report of the first part.
  Report report() const { return outcome_->report(); }

 private:
  void end_record();

  const std::shared_ptr<Outcome> outcome_;
  std::atomic<bool> recorded_{false};
};

}  // namespace unisono::torch_backend

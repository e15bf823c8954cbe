// One operation as torch sees it (c10d::Work), and the threads that complete futures.
//
// Whoever waits drives the operation and finishes it on its own thread; only where a future was asked for, a thread of the pool
// is woken when the operation has ended, and runs what hangs on the future. Such a callback may wait for another future: the
// pool grows.
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

// Runs it without Python's global lock, if this thread has that.
void without_gil(const std::function<void()>& task);

// Threads that run what may take long. Ends when its last owner lets go of it, after all that it was given; if that is a task,
// before its thread does.
class CallbackPool {
 public:
  ~CallbackPool();
  void run(std::function<void()> task);
  // Waits until all is done; what is given later is run by whoever gives it.
  void close();

 private:
  struct State {  // which threads keep
    std::mutex mutex;
    std::condition_variable given;
    std::deque<std::function<void()>> tasks;
    size_t idle = 0;
    bool closed = false;
  };
  static void work(State& state);
  static void join_all(std::vector<std::thread>& threads);

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::thread> threads_;  // under the state's mutex
};

// What went wrong as torch's exceptions: DistBackendError, and TimedOut for what was too late.
class TimedOut : public c10::DistBackendError {
 public:
  using c10::DistBackendError::DistBackendError;
};
std::exception_ptr exception_of(const Status& status, const std::string& what);
// How that of an operation ends, as a number: c10d::WorkResult.
c10::intrusive_ptr<c10::ivalue::Future> result_of(const c10::intrusive_ptr<c10::ivalue::Future>& future);

// Is told once of each operation that has ended.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void ended(const Status& status, const Report& report) = 0;
};

struct WorkSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;                  // for profilers: "unisono:all_reduce"
  std::vector<at::Tensor> inputs{}, outputs{};  // inputs: for profilers; outputs are the future's value
  std::vector<at::Tensor> kept{};               // what the engine reads and writes until the operation is done
  std::vector<std::function<void()>> copies{};  // bring results to where they belong, after all parts have ended well
  uint64_t sequence = 0, identity = 0;
  std::shared_ptr<CallbackPool> pool{};
  std::shared_ptr<Listener> listener{};
};

// An operation's outcome, made once by whoever is first to see that it has ended. It lives, with all memory that the operation
// uses, until then, whoever lets go of it before.
class Outcome : public std::enable_shared_from_this<Outcome> {
 public:
  Outcome(WorkSetup setup, std::vector<unisono::Work> parts) : setup_(std::move(setup)), parts_(std::move(parts)) {}
  ~Outcome();

  const WorkSetup& setup() const { return setup_; }
  bool settled() const { return settled_.load(std::memory_order_acquire); }
  // All parts have ended.
  bool over() const;
  // Makes it if that is possible now.
  bool look();
  // Waits for all parts and makes it; zero: as long as it takes. An error: not in time.
  Status wait(std::chrono::milliseconds timeout);
  void settle(const Status& status, const Report& report);
  // Of one that is settled; before that, none.
  std::exception_ptr error() const { return settled() ? error_ : nullptr; }
  Report report() const { return settled() ? report_ : Report{}; }
  // Completes it with the operation.
  void promise(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::function<void()> then);
  // Nobody waits for it any more.
  void let_go();

 private:
  void complete();
  void fulfil();
  void when_over(std::function<void()> task);

  WorkSetup setup_;
  std::vector<unisono::Work> parts_;  // does not change
  std::mutex mutex_;
  std::atomic<bool> settled_{false};  // then what follows does not change any more
  std::exception_ptr error_;
  Report report_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
};

class TorchWork final : public c10d::Work {
 public:
  // parts: all of them have to end.
  TorchWork(WorkSetup setup, std::vector<unisono::Work> parts);
  // Of an operation that has ended already, and that no profiler watched.
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
  // By which its callbacks' calls are matched between ranks.
  uint64_t identity() const { return outcome_->setup().identity; }
  static std::vector<at::Device> devices() { return {}; }
  // Completes this future with the operation instead of one of its own.
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  // Of the first part.
  Report report() const { return outcome_->report(); }

 private:
  void end_record();

  const std::shared_ptr<Outcome> outcome_;
  std::atomic<bool> recorded_{false};
};

}  // namespace unisono::torch_backend

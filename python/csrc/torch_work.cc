#include "torch_work.h"

#include <pthread.h>

#include <utility>

#include "unisono/status.h"

namespace unisono::torch_backend {

CallbackPool::~CallbackPool() { close(); }

void CallbackPool::run(std::function<void()> task) {
  std::unique_lock lock(mutex_);
  if (closed_) {
    lock.unlock();
    return task();
  }
  tasks_.push_back(std::move(task));
  if (idle_ < tasks_.size()) {
    threads_.emplace_back([this] { work(); });
    ::pthread_setname_np(threads_.back().native_handle(), "unisono-torch");
  }
  given_.notify_one();
}

void CallbackPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    given_.wait(lock, [this] { return closed_ || !tasks_.empty(); });
    --idle_;
    if (tasks_.empty()) return;
    auto task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = {};  // what it keeps alive goes without the lock
    lock.lock();
  }
}

void CallbackPool::close() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    threads.swap(threads_);
    given_.notify_all();
  }
  // Callbacks may wait for the lock.
  if (!threads.empty()) without_gil([&] { join_all(threads); });
}

void CallbackPool::join_all(std::vector<std::thread>& threads) {
  for (auto& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();  // its last task had the last owner
    else thread.join();
  }
}

std::exception_ptr exception_of(const Status& status, const std::string& what) {
  if (status.ok()) return nullptr;
  const auto text = (what.empty() ? "" : what + ": ") + status.to_string();
  const c10::SourceLocation where{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (status.code() == Code::late) return std::make_exception_ptr(TimedOut(where, text));
  if (status.code() == Code::invalid) return std::make_exception_ptr(c10::ValueError(where, text));
  return std::make_exception_ptr(c10::DistBackendError(where, text));
}

TorchWork::TorchWork(WorkSetup setup, std::vector<unisono::Work> parts)
    : c10d::Work(setup.rank, setup.type, setup.title, setup.inputs), setup_(std::move(setup)), parts_(std::move(parts)) {}

TorchWork::TorchWork(WorkSetup setup, Result<Report> outcome) : c10d::Work(setup.rank, setup.type, setup.title, setup.inputs), setup_(std::move(setup)) {
  const std::lock_guard lock(completing_);
  settle(outcome.status(), outcome.ok() ? *outcome : Report{});
}

TorchWork::~TorchWork() = default;

// Under completing_.
void TorchWork::settle(const Status& status, const Report& report) {
  report_ = report;
  error_ = exception_of(status, {});
  if (error_ == nullptr && setup_.finish) {
    try {
      setup_.finish();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  setup_.finish = {};
  if (setup_.ended) std::exchange(setup_.ended, {})(status, report_);
  setup_.inputs.clear();
  settled_ = true;
  finish(error_);
}

// All parts have ended.
void TorchWork::complete() {
  const std::lock_guard lock(completing_);
  if (settled_) return;
  Status status;
  Report report;
  for (auto part : parts_) {
    auto outcome = part.wait();
    if (&part == &parts_.front() || parts_.size() == 1) report = part.report();
    if (!outcome.ok() && status.ok()) status = outcome.status();
  }
  if (!parts_.empty()) report = parts_.front().report();
  settle(status, report);
}

bool TorchWork::isCompleted() {
  {
    const std::lock_guard lock(completing_);
    if (settled_) return true;
  }
  for (const auto& part : parts_) {
    if (!part.done()) return false;
  }
  complete();
  return true;
}

bool TorchWork::isSuccess() const {
  const std::lock_guard lock(completing_);
  return settled_ && error_ == nullptr;
}

std::exception_ptr TorchWork::exception() const {
  const std::lock_guard lock(completing_);
  return error_;
}

int TorchWork::sourceRank() const {
  const std::lock_guard lock(completing_);
  TORCH_CHECK(settled_ && error_ == nullptr, "the source of a message is known when it was received");
  return report_.last_rank;
}

std::vector<at::Tensor> TorchWork::result() { return setup_.outputs; }

void TorchWork::synchronize() { wait(); }

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  bool over = false;
  {
    const std::lock_guard lock(completing_);
    over = settled_;
  }
  if (!over) {
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (auto part : parts_) {
      if (timeout == kNoTimeout) {
        (void)part.wait();
        continue;
      }
      const auto left = std::max(std::chrono::milliseconds(1), std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()));
      const auto outcome = part.wait_for(left);
      if (!outcome.ok() && !part.done()) std::rethrow_exception(exception_of(outcome.status(), setup_.title == nullptr ? "" : setup_.title));
    }
    complete();
  }
  std::exception_ptr error;
  {
    const std::lock_guard lock(completing_);
    error = error_;
  }
  if (error != nullptr) std::rethrow_exception(error);
  return true;
}

void TorchWork::abort() { TORCH_CHECK(false, "one operation cannot be aborted: abort its process group"); }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  promise(future);
  return future;
}

void TorchWork::adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future) { promise(future); }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  getFuture()->addCallback([result](c10::ivalue::Future& future) {
    auto outcome = c10d::WorkResult::SUCCESS;
    if (future.hasError()) {
      outcome = c10d::WorkResult::COMM_ERROR;
      try {
        std::rethrow_exception(future.exception_ptr());
      } catch (const TimedOut&) {
        outcome = c10d::WorkResult::TIMEOUT;
      } catch (...) {
      }
    }
    result->markCompleted(c10::IValue(static_cast<int64_t>(outcome)));
  });
  return result;
}

void TorchWork::promise(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  bool first = false, over = false;
  {
    const std::lock_guard lock(completing_);
    futures_.push_back(future);
    first = futures_.size() == 1;
    over = settled_;
  }
  if (over) return fulfil();
  if (!first) return;
  // The last part to end has the pool complete it; the operation lives until then.
  const auto left = std::make_shared<std::atomic<size_t>>(parts_.size());
  const auto self = c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this);
  for (const auto& part : parts_) {
    part.notify([self, left] {
      if (--*left > 0) return;
      self->setup_.pool->run([self] {
        self->complete();
        self->fulfil();
      });
    });
  }
}

void TorchWork::fulfil() {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  std::exception_ptr error;
  {
    const std::lock_guard lock(completing_);
    futures.swap(futures_);
    error = error_;
  }
  for (const auto& future : futures) {
    if (error != nullptr) future->setErrorIfNeeded(error);
    else future->markCompleted(c10::IValue(setup_.outputs));
  }
}

float TorchWork::getDuration() const { return static_cast<float>(report().total_us) / 1000; }

Report TorchWork::report() const {
  const std::lock_guard lock(completing_);
  return report_;
}

}  // namespace unisono::torch_backend

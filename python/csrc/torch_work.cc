#include "torch_work.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "unisono/status.h"

namespace unisono::torch_backend {

CallbackPool::~CallbackPool() { close(); }

void CallbackPool::run(std::function<void()> task) {
  std::unique_lock lock(state_->mutex);
  const bool needs_thread = !state_->closed && state_->idle <= state_->tasks.size();
  bool here = state_->closed;
  if (needs_thread) {
    try {
      threads_.emplace_back([state = state_] { work(*state); });
      ::pthread_setname_np(threads_.back().native_handle(), "unisono-torch");
    } catch (const std::system_error&) {  // no more threads; all existing ones may be waiting for this task
      here = true;
    }
  }
  if (here) {
    lock.unlock();
    return task();
  }
  state_->tasks.push_back(std::move(task));
  state_->given.notify_one();
}

void CallbackPool::work(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    ++state.idle;
    state.given.wait(lock, [&] { return state.closed || !state.tasks.empty(); });
    --state.idle;
    if (state.tasks.empty()) return;
    auto task = std::move(state.tasks.front());
    state.tasks.pop_front();
    lock.unlock();
    task();
    task = {};  // destroyed without the lock, as it may own the last reference to the pool
    lock.lock();
  }
}

void CallbackPool::close() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(state_->mutex);
    state_->closed = true;
    threads.swap(threads_);
    state_->given.notify_all();
  }
  // Callbacks may wait for the lock.
  if (!threads.empty()) without_gil([&] { join_all(threads); });
}

void CallbackPool::join_all(std::vector<std::thread>& threads) {
  for (auto& thread : threads) {
    if (thread.get_id() == std::this_thread::get_id()) thread.detach();  // its last task held the last reference
    else thread.join();
  }
}

std::exception_ptr exception_of(const Status& status, const std::string& what) {
  if (status.ok()) return nullptr;
  const auto text = (what.empty() ? "" : what + ": ") + status.to_string();
  const c10::SourceLocation where{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (status.code() == Code::late) return std::make_exception_ptr(TimedOut(where, text));
  return std::make_exception_ptr(c10::DistBackendError(where, text));
}

// Outcome -----------------------------------------------------------------------------------------------------------

// A part may hold the last handle of the group, whose destructor says goodbye to the other ranks. Other Python threads run
// meanwhile.
Outcome::~Outcome() {
  if (!parts_.empty()) without_gil([this] { parts_.clear(); });
}

void Outcome::settle(const Status& status, const Report& report) {
  // Freeing tensors may need the GIL, whose owner may be waiting for this lock.
  std::vector<at::Tensor> kept, inputs;
  std::vector<std::function<void()>> copies;
  std::shared_ptr<Listener> listener;
  const std::lock_guard lock(mutex_);
  if (settled()) return;
  kept.swap(setup_.kept), inputs.swap(setup_.inputs), copies.swap(setup_.copies), listener.swap(setup_.listener);
  report_ = report;
  error_ = exception_of(status, {});
  try {
    for (size_t i = 0; i < copies.size() && error_ == nullptr; ++i) copies[i]();
  } catch (...) {
    error_ = std::current_exception();
  }
  if (listener) listener->ended(status, report_);
  settled_.store(true, std::memory_order_release);
}

void Outcome::complete() {
  if (settled()) return;
  Status status;
  for (auto part : parts_) {
    const auto outcome = part.wait();
    if (!outcome.ok() && status.ok()) status = outcome.status();
  }
  settle(status, parts_.empty() ? Report{} : parts_.front().report());
}

bool Outcome::over() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.done(); });
}

bool Outcome::look() {
  if (settled()) return true;
  if (!over()) return false;
  complete();
  return true;
}

Status Outcome::wait(std::chrono::milliseconds timeout) {
  if (settled()) return {};
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (auto part : parts_) {
    if (timeout == kNoTimeout) {
      (void)part.wait();
      continue;
    }
    const auto left = std::max(std::chrono::milliseconds(1),
                               std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()));
    const auto outcome = part.wait_for(left);
    if (!outcome.ok() && !part.done()) return outcome.status();
  }
  complete();
  return {};
}

// Runs in a thread of the pool when the last part has ended.
void Outcome::when_over(std::function<void()> task) {
  const auto left = std::make_shared<std::atomic<size_t>>(parts_.size());
  for (const auto& part : parts_) {
    part.notify([left, task, pool = setup_.pool] {
      if (--*left == 0) pool->run(task);
    });
  }
}

void Outcome::promise(const c10::intrusive_ptr<c10::ivalue::Future>& future, std::function<void()> then) {
  bool first = false, settled = false;
  {
    const std::lock_guard lock(mutex_);
    futures_.push_back(future);
    first = futures_.size() == 1;
    settled = this->settled();
  }
  if (settled) return fulfil();
  if (!first) return;
  when_over([self = shared_from_this(), then = std::move(then)] {
    self->complete();
    then();
    self->fulfil();
  });
}

void Outcome::let_go() {
  if (look()) return;
  when_over([self = shared_from_this()] { self->complete(); });
}

void Outcome::fulfil() {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    futures.swap(futures_);
    error = this->error();
  }
  for (const auto& future : futures) {
    if (error != nullptr) future->setErrorIfNeeded(error);
    else future->markCompleted(c10::IValue(setup_.outputs));
  }
}

// TorchWork ---------------------------------------------------------------------------------------------------------

TorchWork::TorchWork(WorkSetup setup, std::vector<unisono::Work> parts)
    : c10d::Work(setup.rank, setup.type, setup.title, setup.inputs),
      outcome_(std::make_shared<Outcome>(std::move(setup), std::move(parts))) {}

TorchWork::TorchWork(WorkSetup setup, Result<Report> result)
    : c10d::Work(setup.rank, setup.type), outcome_(std::make_shared<Outcome>(std::move(setup), std::vector<unisono::Work>{})) {
  outcome_->settle(result.status(), result.ok() ? *result : Report{});
  end_record();
}

TorchWork::~TorchWork() {
  // Checking waits for the engine, whose thread may be about to free a tensor that Python holds, too.
  if (!outcome_->settled()) without_gil([this] { outcome_->let_go(); });
  end_record();
}

// For profilers, and torch's own fields.
void TorchWork::end_record() {
  if (!recorded_.exchange(true)) finish(outcome_->error());
}

bool TorchWork::isCompleted() {
  bool ended = outcome_->settled();
  if (!ended) without_gil([&] { ended = outcome_->look(); });
  if (!ended) return false;
  end_record();
  return true;
}

int TorchWork::sourceRank() const {
  TORCH_CHECK(isSuccess(), "the source of a message is known when it was received");
  return outcome_->report().last_rank;
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  const auto waited = outcome_->wait(timeout);
  if (!waited.ok())
    std::rethrow_exception(exception_of(waited, outcome_->setup().title == nullptr ? "" : outcome_->setup().title));
  end_record();
  if (const auto error = outcome_->error(); error != nullptr) std::rethrow_exception(error);
  return true;
}

void TorchWork::abort() { TORCH_CHECK(false, "one operation cannot be aborted: abort its process group"); }

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
  adopt(future);
  return future;
}

void TorchWork::adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  outcome_->promise(future,
                    [self = c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this)] { self->end_record(); });
}

c10::intrusive_ptr<c10::ivalue::Future> TorchWork::getFutureResult() { return result_of(getFuture()); }

c10::intrusive_ptr<c10::ivalue::Future> result_of(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  auto result = c10::make_intrusive<c10::ivalue::Future>(c10::IntType::get());
  future->addCallback([result](c10::ivalue::Future& ended) {
    auto outcome = c10d::WorkResult::SUCCESS;
    if (ended.hasError()) {
      outcome = c10d::WorkResult::COMM_ERROR;
      try {
        std::rethrow_exception(ended.exception_ptr());
      } catch (const TimedOut&) {
        outcome = c10d::WorkResult::TIMEOUT;
      } catch (...) {}
    }
    result->markCompleted(c10::IValue(static_cast<int64_t>(outcome)));
  });
  return result;
}

}  // namespace unisono::torch_backend

#include "torch_work.h"

#include <algorithm>
#include <utility>

#include "torch_futures.h"
#include "unisono/status.h"

namespace unisono::torch_backend {

std::exception_ptr exception_of(const Status& status, const std::string& what) {
  if (status.ok()) return nullptr;
  const auto text = (what.empty() ? "" : what + ": ") + status.to_string();
  const c10::SourceLocation where{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  if (status.code() == Code::late) return std::make_exception_ptr(TimedOut(where, text));
  return std::make_exception_ptr(c10::DistBackendError(where, text));
}

// Outcome -----------------------------------------------------------------------------------------------------------

namespace {

// A part (one of the operation's Works) may hold the last handle of the group. Then the destructor of the handle tells the
// other ranks that this rank leaves. Meanwhile, the GIL is released, so that other Python threads can run.
void release(std::vector<unisono::Work>& parts) {
  if (!parts.empty()) without_gil([&] { parts.clear(); });
}

}  // namespace

bool wait_for(unisono::Work& operation, Clock::duration time) {
  const auto begun = Clock::now();
  (void)operation.wait_for(std::chrono::ceil<std::chrono::milliseconds>(time));
  if (operation.done()) return true;
  if (time < signal_interval || Clock::now() - begun > signal_interval / 2) return false;
  (void)operation.wait();  // The operation is overdue, so wait_for() did not wait. wait() returns soon.
  return true;
}

Outcome::~Outcome() { release(parts_); }

void Outcome::check_process() const {
  if (!forked()) return;
  const auto what = setup_.title == nullptr ? std::string("unisono") : std::string(setup_.title);
  std::rethrow_exception(exception_of({Code::invalid, setup_.pool->owner().refusal()}, what));
}

void Outcome::settle(const Status& status, const Report& report) {
  // These objects are freed only after the lock has been released. To free a tensor, this thread may need the GIL, and the
  // thread that holds the GIL may be waiting for the lock.
  std::vector<at::Tensor> kept, inputs;
  std::vector<std::function<void()>> copies;
  std::shared_ptr<Listener> listener;
  std::vector<unisono::Work> parts;
  {
    const std::lock_guard lock(mutex_);
    if (settled()) return;
    kept.swap(setup_.kept), inputs.swap(setup_.inputs), copies.swap(setup_.copies), listener.swap(setup_.listener);
    parts.swap(parts_);
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
  release(parts);
}

std::vector<unisono::Work> Outcome::parts() const {
  const std::lock_guard lock(mutex_);
  return parts_;
}

void Outcome::complete() {
  auto all = parts();
  if (settled()) return;
  Status status;
  for (auto& part : all) {
    const auto outcome = part.wait();
    if (!outcome.ok() && status.ok()) status = outcome.status();
  }
  settle(status, all.empty() ? Report{} : all.front().report());
  release(all);
}

bool Outcome::is_needed() const {
  switch (setup_.type) {
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE:
    case c10d::OpType::COALESCED: return false;
    default: return true;
  }
}

bool Outcome::over() const {
  const auto all = parts();
  return std::ranges::all_of(all, [](const auto& part) { return part.done(); });
}

bool Outcome::poll() {
  if (settled()) return true;
  if (!over()) return false;
  complete();
  return true;
}

Status Outcome::wait(std::chrono::milliseconds timeout) {
  if (settled()) return {};
  const auto until = timeout == kNoTimeout ? far_future() : Clock::now() + timeout;
  for (auto& part : parts()) {
    if (!wait_interruptibly(until, [&](Clock::duration time) { return torch_backend::wait_for(part, time); }))
      return {Code::late, "still running after waiting " + std::to_string(timeout.count()) + " ms"};
  }
  complete();
  return {};
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
  setup_.pool->run_after(parts(), is_needed(), [self = shared_from_this(), then = std::move(then)] {
    self->complete();
    then();
    self->fulfil();
  });
}

void Outcome::detach() {
  if (poll()) return;
  setup_.pool->run_after(parts(), is_needed(), [self = shared_from_this()] { self->complete(); });
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

TorchWork::TorchWork(std::shared_ptr<Outcome> outcome)
    : c10d::Work(outcome->setup().rank, outcome->setup().type), outcome_(std::move(outcome)) {
  end_record();
}

TorchWork::~TorchWork() {
  if (outcome_->forked()) return;
  // The GIL is released because detach() waits for the engine's thread, and this thread may need the GIL to free a tensor.
  if (!outcome_->settled()) without_gil([this] { outcome_->detach(); });
  end_record();
}

// Sets the fields of c10d::Work, which profilers read.
void TorchWork::end_record() {
  if (!recorded_.exchange(true)) finish(outcome_->error());
}

bool TorchWork::isCompleted() {
  if (outcome_->forked()) return true;  // wait() then throws the error at once
  bool ended = outcome_->settled();
  if (!ended) without_gil([&] { ended = outcome_->poll(); });
  if (!ended) return false;
  end_record();
  return true;
}

int TorchWork::sourceRank() const {
  TORCH_CHECK(isSuccess(), "the source of a message is known when it was received");
  return outcome_->report().last_rank;
}

bool TorchWork::wait(std::chrono::milliseconds timeout) {
  outcome_->check_process();
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
  outcome_->check_process();
  outcome_->promise(future,
                    [self = c10::intrusive_ptr<TorchWork>::unsafe_reclaim_from_nonowning(this)] { self->end_record(); });
  wait_in_backward(future);
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

#include "torch_staging.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pthread.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "torch_futures.h"
#include "torch_tensors.h"

namespace unisono::torch_backend {

// Lane --------------------------------------------------------------------------------------------------------------

namespace {

// Returns whether the event has passed. A device that has failed has no work left, so its events count as passed. The next user
// of the device gets the error.
bool passed(const c10::Event& event, bool wait) {
  try {
    if (wait) event.synchronize();
    return wait || event.query();
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace

Lane::~Lane() { close(); }

void Lane::push(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!closed_, "unisono: this process group has been shut down");
  tasks_.push_back(std::move(task));
  ++pushed_;
  if (!thread_.joinable()) {
    thread_ = std::thread([this] { work(); });
    ::pthread_setname_np(thread_.native_handle(), "unisono-staging");
  }
  task_pushed_.notify_one();
}

void Lane::drain() {
  std::unique_lock lock(mutex_);
  task_finished_.wait(lock, [this, all = pushed_.load()] { return finished_ >= all; });
}

void Lane::run_outside_lane(std::function<void()> task) {
  bool here = false;
  {
    const std::lock_guard lock(mutex_);
    here = std::this_thread::get_id() == thread_.get_id();
  }
  if (here) pool_->run(std::move(task));
  else task();
}

void Lane::keep(std::shared_ptr<c10::Event> until, std::shared_ptr<void> what) {
  {
    const std::lock_guard lock(mutex_);
    if (!closed_) {
      kept_.push_back({std::move(until), std::move(what)});
      task_pushed_.notify_one();
      return;
    }
  }
  passed(*until, true);
}

bool Lane::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

void Lane::work() {
  const unisono_python::PythonThread python;  // tasks free tensors
  std::vector<Kept> kept;
  std::unique_lock lock(mutex_);
  for (;;) {
    const auto has_work = [this] { return closed_ || !tasks_.empty() || !kept_.empty(); };
    // Nothing notifies this thread when an event passes, so events are polled every millisecond.
    if (kept.empty()) task_pushed_.wait(lock, has_work);
    else task_pushed_.wait_for(lock, std::chrono::milliseconds(1), has_work);
    std::move(kept_.begin(), kept_.end(), std::back_inserter(kept));
    kept_.clear();
    const bool last = closed_ && tasks_.empty();
    std::function<void()> task;
    if (!tasks_.empty()) {
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    lock.unlock();
    if (task) task();
    const bool ran_task = static_cast<bool>(task);
    task = {};
    std::erase_if(kept, [last](const Kept& one) { return passed(*one.until, last); });
    lock.lock();
    if (ran_task) ++finished_, task_finished_.notify_all();
    if (last) return;
  }
}

void Lane::close() {
  std::thread thread;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    task_pushed_.notify_one();
    thread.swap(thread_);
  }
  without_gil([&] {
    if (thread.joinable()) thread.join();
    pool_->close();
  });
}

// Staging -----------------------------------------------------------------------------------------------------------

namespace {

at::Device device_of(const char* what, const std::vector<const Staging::Tensors*>& all) {
  const at::Tensor* first = nullptr;
  for (const auto* list : all) {
    for (const auto& tensor : *list) {
      if (first == nullptr) first = &tensor;
      TORCH_CHECK_TYPE(tensor.defined() && tensor.layout() == at::kStrided, "unisono: ", what, " takes dense tensors");
      TORCH_CHECK_TYPE(tensor.device() == first->device(), "unisono: ", what, " got tensors on ", first->device(), " and on ",
                       tensor.device());
    }
  }
  TORCH_CHECK_VALUE(first != nullptr, "unisono: ", what, " takes one tensor at least");
  return first->device();
}

// Returns true if devices of this kind can copy from pinned memory without blocking the host.
bool has_pinned_memory(at::DeviceType type) {
  if (at::accelerator::getAccelerator(false) != type) return false;
  try {
    return at::globalContext().getAcceleratorHooksInterface(type).getPinnedMemoryAllocator() != nullptr;
  } catch (const c10::Error&) {
    return false;
  }
}

// While this object exists, copies that this thread makes bypass autograd and version counters, whatever mode the thread is in.
// The writes of the engine itself bypass them, too.
struct PlainMemory {
  c10::InferenceMode no_inference{false};
  at::AutoDispatchBelowADInplaceOrView below;
};

}  // namespace

bool on_host(const at::Tensor& tensor) {
  return !tensor.defined() || tensor.is_cpu() || tensor.is_meta() || tensor.layout() != at::kStrided;
}

Staging::Staging(const char* what, const std::vector<const Tensors*>& all)
    : what_(what),
      device_(device_of(what, all)),
      stream_(c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_, true)),
      pinned_(has_pinned_memory(device_.type())) {
  const auto current = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  TORCH_CHECK(!c10::impl::VirtualGuardImpl(device_.type()).isStreamCapturing(current), "unisono: ", what,
              " cannot be captured in a graph");
  c10::Event called(device_.type());
  called.record(current);
  called.block(stream_);
}

// Returns host memory for the tensors. Tensors of the same type get contiguous memory, so that the operation need not copy them
// again.
Staging::Tensors Staging::memory_for(const Tensors& tensors) const {
  const auto options = [this](const at::Tensor& like) {
    return at::TensorOptions().dtype(like.scalar_type()).device(at::kCPU).pinned_memory(pinned_);
  };
  Tensors hosts;
  const bool one_type =
      std::ranges::all_of(tensors, [&](const auto& tensor) { return tensor.scalar_type() == tensors.front().scalar_type(); });
  if (!one_type || tensors.size() == 1) {
    for (const auto& tensor : tensors) hosts.push_back(at::empty(tensor.sizes(), options(tensor)));
    return hosts;
  }
  const auto elements = std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                                        [](int64_t sum, const auto& tensor) { return sum + tensor.numel(); });
  const auto whole = at::empty({elements}, options(tensors.front()));
  int64_t at = 0;
  for (const auto& tensor : tensors) {
    hosts.push_back(whole.narrow(0, at, tensor.numel()).view(tensor.sizes()));
    at += tensor.numel();
  }
  return hosts;
}

Staging::Tensors Staging::in(const Tensors& tensors) {
  if (tensors.empty()) return {};
  const PlainMemory plain;
  const c10::StreamGuard on(stream_);
  auto hosts = memory_for(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) {
    read_.push_back(tensors[i]);
    hosts[i].copy_(tensors[i], pinned_);
  }
  return hosts;
}

Staging::Tensors Staging::out(const Tensors& tensors) {
  if (tensors.empty()) return {};
  for (const auto& tensor : tensors) check_output(tensor, what_);
  const PlainMemory plain;
  auto hosts = memory_for(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) back_.emplace_back(tensors[i], hosts[i]);
  return hosts;
}

Staging::Tensors Staging::in_and_out(const Tensors& tensors) {
  for (const auto& tensor : tensors) check_output(tensor, what_);
  auto hosts = in(tensors);
  for (size_t i = 0; i < tensors.size(); ++i) back_.emplace_back(tensors[i], hosts[i]);
  return hosts;
}

void Staging::end_inputs() {
  if (read_.empty()) return;
  copied_ = std::make_unique<c10::Event>(device_.type());
  copied_->record(stream_);
}

void Staging::wait() {
  if (copied_ != nullptr) copied_->synchronize();
  copied_.reset();
  read_.clear();
}

std::shared_ptr<c10::Event> Staging::copy_back() {
  if (back_.empty()) return nullptr;
  const PlainMemory plain;
  const c10::StreamGuard on(stream_);
  const c10::impl::VirtualGuardImpl guard(device_.type());
  for (auto& [tensor, host] : back_) {
    tensor.copy_(host, pinned_);
    // If the tensor is freed during the copy, the allocator must not reuse its memory before the copy is complete.
    guard.recordDataPtrOnStream(tensor.storage().data_ptr(), stream_);
  }
  auto ready = std::make_shared<c10::Event>(device_.type());
  ready->record(stream_);
  return ready;
}

// StagedWork --------------------------------------------------------------------------------------------------------

StagedWork::StagedWork(StagedSetup setup, c10::Stream stream)
    : c10d::Work(setup.rank, setup.type, setup.title, setup.inputs), setup_(std::move(setup)), stream_(stream) {}

void StagedWork::end_record() {
  if (!recorded_.exchange(true)) finish(exception());
}

bool StagedWork::isCompleted() {
  const std::lock_guard lock(state_);
  return done_;
}

bool StagedWork::isSuccess() const {
  const std::lock_guard lock(state_);
  return done_ && error_ == nullptr;
}

std::exception_ptr StagedWork::exception() const {
  const std::lock_guard lock(state_);
  return error_;
}

std::shared_ptr<c10::Event> StagedWork::ready() const {
  const std::lock_guard lock(state_);
  return ready_;
}

Report StagedWork::report() const {
  const std::lock_guard lock(state_);
  return operation_ == nullptr ? Report{} : operation_->report();
}

int StagedWork::sourceRank() const {
  TORCH_CHECK(isSuccess(), "the source of a message is known when it was received");
  return report().last_rank;
}

float StagedWork::getDuration() const { return static_cast<float>(report().total_us) / 1000; }

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  // Without a timeout, no limit is needed here, because the operation itself has a deadline.
  const auto until = timeout == kNoTimeout ? far_future() : Clock::now() + timeout;
  const bool in_time = wait_interruptibly(until, [this](Clock::duration time) {
    std::unique_lock lock(state_);
    return completed_condition_.wait_for(lock, time, [this] { return done_; });
  });
  if (!in_time)
    std::rethrow_exception(exception_of({Code::late, "not done in " + std::to_string(timeout.count()) + " ms"},
                                        setup_.title == nullptr ? "" : setup_.title));
  std::unique_lock lock(state_);
  const auto error = error_;
  const auto ready = ready_;
  lock.unlock();
  if (error != nullptr) std::rethrow_exception(error);
  if (ready != nullptr) ready->block(c10::impl::VirtualGuardImpl(stream_.device_type()).getStream(stream_.device()));
  return true;
}

void StagedWork::abort() { TORCH_CHECK(false, "one operation cannot be aborted: abort its process group"); }

void StagedWork::complete(std::exception_ptr error, c10::intrusive_ptr<TorchWork> operation,
                          std::shared_ptr<c10::Event> ready) {
  {
    const std::lock_guard lock(state_);
    done_ = true;
    error_ = std::move(error);
    operation_ = std::move(operation);
    ready_ = std::move(ready);
    completed_condition_.notify_all();
  }
  end_record();
  fulfil();
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFuture() {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices());
  adopt(future);
  return future;
}

c10::intrusive_ptr<c10::ivalue::Future> StagedWork::getFutureResult() { return result_of(getFuture()); }

void StagedWork::adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  {
    const std::lock_guard lock(state_);
    futures_.push_back(future);
    if (!done_) return wait_in_backward(future);
  }
  fulfil();
}

c10::IValue StagedWork::value() const {
  const PlainMemory plain;
  const auto& outputs = setup_.outputs;
  const bool alike = setup_.by_rank && std::ranges::all_of(outputs, [&](const auto& output) {
                       return output.sizes() == outputs.front().sizes();
                     });
  return c10::IValue(alike ? std::vector<at::Tensor>{at::stack(outputs)} : outputs);
}

void StagedWork::fulfil() {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  std::exception_ptr error;
  {
    const std::lock_guard lock(state_);
    futures.swap(futures_);
    error = error_;
  }
  for (const auto& future : futures) {
    if (error != nullptr) {
      future->setErrorIfNeeded(error);
      continue;
    }
    try {
      const c10::StreamGuard on(stream_);
      auto outputs = value();
      future->markCompleted(std::move(outputs));  // the current stream is stream_, and the user of the outputs waits for it
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  }
}

}  // namespace unisono::torch_backend

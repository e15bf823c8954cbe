#include "core_calls.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "forking.h"

namespace unisono_python {

struct InterruptibleCalls::Call {
  const Owner owner;
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // the library's call, and all that it uses
  std::thread thread;
  const std::function<void()>* callback = nullptr;  // what the thread that waits for the call must run
  bool callback_ran = false;
  bool abandoned = false;  // true: nobody waits for the call, so nobody runs callbacks
  std::atomic<bool> done{false};
};

namespace {

using Call = InterruptibleCalls::Call;

constexpr std::chrono::milliseconds signal_interval{100};

// The call that this thread makes in the library.
thread_local Call* own_call = nullptr;

// The number of threads of the library that run a function in Python, and whether others are refused.
std::atomic<uint32_t> running{0};
std::atomic<bool> refused{false};

// In a thread of the library, calls the function, unless these threads must not touch Python any more.
template <typename F>
bool unless_refused(F&& function) {
  running.fetch_add(1);
  const bool runs = !refused.load() && Py_IsInitialized() != 0;
  if (runs) function();
  if (running.fetch_sub(1) == 1) running.notify_all();
  return runs;
}

bool hand_over(Call& call, const std::function<void()>& function) {
  std::unique_lock lock(call.mutex);
  if (call.abandoned) return false;
  call.callback = &function;
  call.callback_ran = false;
  call.changed.notify_all();
  call.changed.wait(lock, [&] { return call.callback == nullptr; });
  return call.callback_ran;
}

}  // namespace

bool call_python(const std::function<void()>& function) {
  if (own_call != nullptr) return hand_over(*own_call, function);
  if (Py_IsInitialized() == 0) return false;
  const auto run = [&] {
    const PythonThread python;
    const py::gil_scoped_acquire gil;
    function();
  };
  if (PyGILState_GetThisThreadState() == nullptr) return unless_refused(run);
  run();
  return true;
}

void refuse_library_threads() {
  refused = true;
  const py::gil_scoped_release released;
  for (auto now = running.load(); now > 0; now = running.load()) running.wait(now);
}

void InterruptibleCalls::Delete::operator()(Call* call) const {
  if (call->owner.forked()) return;  // The thread does not exist in this process, and may have held the mutex.
  call->thread.join();
  delete call;
}

// The abandoned calls are never freed at exit, because they may still be running when the interpreter ends.
std::vector<std::unique_ptr<InterruptibleCalls::Call, InterruptibleCalls::Delete>>& InterruptibleCalls::abandoned() {
  static auto& calls = *new std::vector<std::unique_ptr<Call, Delete>>;
  return calls;
}

void InterruptibleCalls::free_ended() {
  auto calls = std::exchange(abandoned(), {});  // the list may grow while the GIL is released
  for (auto& call : calls) {
    if (!call->done) abandoned().push_back(std::move(call));
  }
}

// The thread of a call that was abandoned must not free what the call owns. So the main thread does it, as soon as it runs code
// in Python. If it cannot be told, a later call does it.
void InterruptibleCalls::free_soon() {
  (void)unless_refused([] {
    (void)Py_AddPendingCall(
        [](void*) {
          free_ended();
          return 0;
        },
        nullptr);
  });
}

void InterruptibleCalls::start(std::function<void()> task) {
  free_ended();
  auto call = std::make_unique<Call>();
  call->task = std::move(task);
  call->thread = std::thread([call = call.get()] {
    own_call = call;
    call->task();
    const std::lock_guard lock(call->mutex);
    call->done = true;
    call->changed.notify_all();
    if (call->abandoned) free_soon();
  });
  call_.reset(call.release());
}

void InterruptibleCalls::finish() {
  if (in_callback_) return;
  while (call_ != nullptr) {
    if (call_->owner.forked()) return call_.reset();
    const std::function<void()>* callback = nullptr;
    {
      const py::gil_scoped_release released;
      std::unique_lock lock(call_->mutex);
      call_->changed.wait_for(lock, signal_interval, [&] { return call_->done || call_->callback != nullptr; });
      callback = call_->callback;
    }
    if (callback != nullptr) {
      in_callback_ = true;
      (*callback)();
      in_callback_ = false;
      const std::lock_guard lock(call_->mutex);
      call_->callback = nullptr;
      call_->callback_ran = true;
      call_->changed.notify_all();
    } else if (call_->done) {
      call_.reset();
    } else if (PyErr_CheckSignals() != 0) {
      throw py::error_already_set();
    }
  }
}

void InterruptibleCalls::abandon() {
  if (call_ == nullptr) return;
  if (!call_->owner.forked()) {
    const std::lock_guard lock(call_->mutex);
    call_->abandoned = true;
    call_->callback = nullptr;
    call_->changed.notify_all();
  }
  abandoned().push_back(std::move(call_));
}

}  // namespace unisono_python

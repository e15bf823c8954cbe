// Python.h comes first, as Python demands.
#include <Python.h>

#include "forking.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>

namespace unisono_python {
namespace {

std::atomic<uint32_t> forks{0};
// Held while a thread state is made, and during fork(). Its holders never wait for the GIL, because the thread that forks may
// hold it.
std::mutex fork_gate;

void watch_forks() {
  // If memory runs out here, children are not told. They then behave as without this file.
  [[maybe_unused]] static const int watched = ::pthread_atfork([] { fork_gate.lock(); }, [] { fork_gate.unlock(); },
                                                               [] {
                                                                 forks.fetch_add(1, std::memory_order_relaxed);
                                                                 fork_gate.unlock();
                                                               });
}

}  // namespace

Owner::Owner() : forks_((watch_forks(), forks.load(std::memory_order_relaxed))), pid_(::getpid()) {}

bool Owner::forked() const { return forks.load(std::memory_order_relaxed) != forks_; }

std::string Owner::refusal() const {
  return "this process was forked from a member (pid " + std::to_string(pid_) +
         "), and is none itself: make the call in that process, or start processes by the start method spawn";
}

PythonThread::PythonThread() {
  watch_forks();
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() != nullptr) return;
  const std::lock_guard lock(fork_gate);
  state_ = PyThreadState_New(PyInterpreterState_Main());
}

PythonThread::~PythonThread() noexcept(false) {
  // When the interpreter has ended, it has freed the state.
  if (state_ == nullptr || Py_IsInitialized() == 0) return;
  auto* const state = static_cast<PyThreadState*>(state_);
  PyEval_RestoreThread(state);
  PyThreadState_Clear(state);
  PyThreadState_DeleteCurrent();
}

}  // namespace unisono_python

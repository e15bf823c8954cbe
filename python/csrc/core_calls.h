// Calls of the library that block and that offer no wait with a timeout, such as the steps of training loops.
//
// Python runs the handlers of signals in the main thread only. So if the main thread makes such a call, a second thread makes
// it in the library, and the main thread runs the handlers meanwhile. The second thread never touches Python: functions in
// Python that the library calls there run in the main thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "core.h"

namespace unisono_python {

// Runs a function that uses Python, for a callback of the library. The function must not throw. It runs under the GIL: in the
// thread that waits for the library's call, or, in a thread that the library has started, in this thread. Returns false if it
// has not run, because nobody waits for the call any more, or because the interpreter ends.
[[nodiscard]] bool call_python(const std::function<void()>& function);
// Call it before the interpreter ends. Waits until no thread of the library runs a function in Python. Later, call_python()
// runs none in these threads. Do not call it in a forked child, which has none of the threads that it would wait for.
void refuse_library_threads();

// The blocking calls of one object. Use it under the GIL, by one thread at a time.
class InterruptibleCalls {
 public:
  InterruptibleCalls() = default;
  InterruptibleCalls(const InterruptibleCalls&) = delete;
  ~InterruptibleCalls() { abandon(); }

  // Calls the function without the GIL, and returns its result. If a handler of a signal raises an exception, throws it. The
  // library's call then goes on, so the function must own all that it uses.
  template <typename F>
  auto run(F function) {
    finish();
    if (!is_main_thread()) {
      const py::gil_scoped_release released;
      return function();
    }
    const auto result = std::make_shared<std::optional<decltype(function())>>();
    start([result, function = std::move(function)]() mutable { result->emplace(function()); });
    finish();
    return std::move(**result);
  }
  // If an interrupted call has not ended, waits for it as run() does. All functions of the object that touch what the call uses
  // must call this first. In a callback of a call, it does nothing.
  void finish();
  // Call it if nobody will wait for the interrupted call. The call goes on, but its callbacks in Python do not run any more.
  // What it owns is freed when it has ended, by a later call of any object.
  void abandon();

  struct Call;

 private:
  struct Delete {
    void operator()(Call* call) const;
  };
  static std::vector<std::unique_ptr<Call, Delete>>& abandoned();
  static void free_ended();
  static void free_soon();
  void start(std::function<void()> task);
  std::unique_ptr<Call, Delete> call_;
  bool in_callback_ = false;
};

// Returns an owner of the object for the functions that run() gets. The destructor of the object may wait for threads.
template <typename T>
std::shared_ptr<T> owned(T object) {
  return {new T(std::move(object)), DeleteReleased()};
}

}  // namespace unisono_python

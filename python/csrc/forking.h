// What the Python modules must know about fork(). A child has none of the threads of its parent. A lock that another thread
// held at the fork stays locked in the child for ever. So in a child, objects of the parent's groups take no lock: they refuse
// calls, and they free nothing that threads use.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace unisono_python {

// The process that made an object.
class Owner {
 public:
  Owner();
  // Returns true in a child of the owner, made by fork(), and in its children.
  bool forked() const;
  // Says why a call in a child is refused.
  std::string refusal() const;

 private:
  const uint32_t forks_;  // the number of forks between the first process and the owner
  const pid_t pid_;
};

// While this object exists, its thread, which the library has started, has a state in Python's interpreter. Each of our threads
// that may need the GIL must have one. Without it, every use of the GIL makes a new state, under a lock of the interpreter, but
// without the GIL. If another thread forked at this moment, the child would hang in os.fork(): up to version 3.11, Python takes
// this lock there before it repairs it. So fork() waits until no PythonThread is being made, which never takes long.
// In a thread that has a state already, it does nothing.
class PythonThread {
 public:
  PythonThread();
  // Waits for the GIL. If the interpreter ends meanwhile, Python ends this thread by unwinding its stack.
  ~PythonThread() noexcept(false);
  PythonThread(const PythonThread&) = delete;

 private:
  void* state_ = nullptr;  // a PyThreadState
};

}  // namespace unisono_python

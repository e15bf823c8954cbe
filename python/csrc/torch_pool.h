// The threads that complete futures and run their callbacks.
//
// A callback may wait for another future, so the pool grows if all its threads are busy. The pool keeps the tasks that wait for
// the end of an operation. So the library's own threads, which notice that end, own no tensor.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "forking.h"
#include "unisono/group.h"

namespace unisono::torch_backend {

// Runs the task. If this thread holds the GIL, it is released meanwhile.
void without_gil(const std::function<void()>& task);

// A pool of threads for tasks that may take long. When the last reference to the pool is released, the pool finishes all tasks
// and ends. If a task owns this reference, the pool ends when the thread of this task ends. In a forked child, which has none
// of the threads, the pool is left as it is.
class CallbackPool : public std::enable_shared_from_this<CallbackPool> {
 public:
  using Clock = std::chrono::steady_clock;
  ~CallbackPool();
  // The process whose threads run the tasks.
  const unisono_python::Owner& owner() const { return owner_; }
  void run(std::function<void()> task);
  // Runs the task after all these operations have ended. `needed`: other ranks may need them.
  void run_after(const std::vector<unisono::Work>& operations, bool needed, std::function<void()> task);
  // Waits until all tasks are done, also those that wait for needed operations. Does not wait for tasks that are in this
  // function or in close() themselves. Returns false if the time passes first.
  bool wait_idle(Clock::time_point until);
  // Returns whether no task is running or waits for a thread.
  bool idle() const;
  // Waits until all tasks are done. Later tasks run on the thread that submits them. Call it without the GIL.
  void close();

 private:
  struct Waiting {
    std::function<void()> task;
    bool needed = false;
  };
  struct State {  // the pool shares this with its threads, because they may outlive it
    std::mutex mutex;
    std::condition_variable task_pushed, changed;
    std::deque<std::function<void()>> tasks;
    std::map<uint64_t, Waiting> waiting;  // tasks that wait for the end of an operation
    uint64_t last_ticket = 0;
    size_t idle = 0;      // threads that wait for a task
    size_t running = 0;   // tasks that are running, or whose functions are being destroyed
    size_t in_waits = 0;  // those of them that are in wait_idle() or close()
    bool closed = false;
  };
  static void work(State& state);
  static void join_all(std::vector<std::thread>& threads);
  void push(std::unique_lock<std::mutex> lock, std::function<void()> task);
  void release(uint64_t ticket);
  template <typename Condition>
  bool wait(Clock::time_point until, Condition&& condition);

  const unisono_python::Owner owner_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::vector<std::thread> threads_;  // guarded by State::mutex
};

}  // namespace unisono::torch_backend

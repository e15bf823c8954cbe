#include "torch_futures.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <condition_variable>
#include <memory>
#include <mutex>

#include "torch_waiting.h"

namespace unisono::torch_backend {

void wait_for_future(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (!is_signal_thread() || future->completed()) return;
  struct Ended {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto ended = std::make_shared<Ended>();
  future->addCallback(
      [ended](c10::ivalue::Future&) {
        const std::lock_guard lock(ended->mutex);
        ended->done = true;
        ended->changed.notify_all();
      },
      false);
  (void)wait_interruptibly(far_future(), [&](Clock::duration time) {
    std::unique_lock lock(ended->mutex);
    return ended->changed.wait_for(lock, time, [&] { return ended->done; });
  });
}

void wait_in_backward(const c10::intrusive_ptr<c10::ivalue::Future>& future) {
  if (!is_signal_thread() || torch::autograd::get_current_graph_task_id() < 0) return;
  torch::autograd::Engine::get_default_engine().queue_callback([future] { wait_for_future(future); });
}

}  // namespace unisono::torch_backend

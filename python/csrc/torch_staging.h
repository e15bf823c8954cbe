// Calls with tensors of an accelerator. Tensors are copied to pinned host memory on a separate stream, the call uses the
// copies, and results are copied back on that stream.
//
// The caller does not block. The separate stream waits for the caller's current stream, and the lane's thread waits for the
// separate stream before it makes the call. No code here depends on the kind of device; streams and events are those of torch's
// device guards.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "torch_work.h"

namespace unisono::torch_backend {

// Runs tasks in order on one thread, which starts with the first task.
class Lane {
 public:
  ~Lane();
  void push(std::function<void()> task);
  bool idle() const { return given_.load(std::memory_order_acquire) == finished_.load(std::memory_order_acquire); }
  // Waits until all earlier tasks are done.
  void drain();
  // Runs a task here; or on another thread if this is the lane's. For tasks that may wait for a later task of the lane.
  void run_off(std::function<void()> task);
  // Keeps `what` alive until the event has passed.
  void keep(std::shared_ptr<c10::Event> until, std::shared_ptr<void> what);
  // Waits until all tasks are done and nothing is kept; then accepts no more tasks.
  void close();
  bool closed() const;

 private:
  struct Kept {
    std::shared_ptr<c10::Event> until;
    std::shared_ptr<void> what;
  };
  void work();

  mutable std::mutex mutex_;
  std::condition_variable given_one_, finished_one_;
  std::deque<std::function<void()>> tasks_;
  std::vector<Kept> kept_;
  std::atomic<uint64_t> given_{0}, finished_{0};
  bool closed_ = false;
  std::thread thread_;
  const std::shared_ptr<CallbackPool> pool_ = std::make_shared<CallbackPool>();
};

// Host copies of one call's tensors. Made on the caller's thread, and ordered after its current stream.
class Staging {
 public:
  using Tensors = std::vector<at::Tensor>;
  // TypeError: they are not dense tensors on one device.
  Staging(const char* what, const std::vector<const Tensors*>& all);

  // in: copies with the values at this point of the caller's stream. out: memory for results to copy back. The third: both.
  Tensors in(const Tensors& tensors);
  Tensors out(const Tensors& tensors);
  Tensors in_and_out(const Tensors& tensors);
  // Call after the last of them.
  void given();
  // Blocks until the copies are complete.
  void wait();
  // Copies results back; the event passes when they are complete.
  std::shared_ptr<c10::Event> copy_back();

  at::Device device() const { return device_; }
  c10::Stream stream() const { return stream_; }

 private:
  Tensors memory_for(const Tensors& tensors) const;

  const at::Device device_;
  const c10::Stream stream_;
  bool pinned_ = false;
  Tensors read_;  // kept until their copies are complete
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;
  std::unique_ptr<c10::Event> copied_;
};

// Dense or sparse tensors on the CPU need no staging.
bool on_host(const at::Tensor& tensor);

struct StagedSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::vector<at::Tensor> inputs{}, outputs{};  // on the device
  bool by_rank = false;                         // the future has one tensor, whose rows are the outputs
  uint64_t sequence = 0, identity = 0;
};

// The Work that torch waits on. wait() blocks until the operation has ended, then makes the current stream wait for the copies
// back.
class StagedWork final : public c10d::Work {
 public:
  StagedWork(StagedSetup setup, c10::Stream stream);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  std::vector<at::Tensor> result() override { return setup_.outputs; }
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
  float getDuration() const override;
  uint64_t getSequencenumber() const override { return setup_.sequence; }

  // As in TorchWork.
  uint64_t identity() const { return setup_.identity; }
  std::vector<at::Device> devices() const { return {stream_.device()}; }
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  Report report() const;

  // Call once. `ready` passes when the outputs are complete; none: nothing was copied back.
  void complete(std::exception_ptr error, c10::intrusive_ptr<TorchWork> operation, std::shared_ptr<c10::Event> ready);
  // Requires a completed work.
  std::shared_ptr<c10::Event> ready() const;

 private:
  void fulfil();
  c10::IValue value() const;
  void end_record();

  const StagedSetup setup_;
  const c10::Stream stream_;
  mutable std::mutex state_;  // c10d::Work has a mutex_ of its own
  std::condition_variable completed_one_;
  bool done_ = false;
  std::exception_ptr error_;
  std::shared_ptr<c10::Event> ready_;
  c10::intrusive_ptr<TorchWork> operation_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
  std::atomic<bool> recorded_{false};
};

}  // namespace unisono::torch_backend

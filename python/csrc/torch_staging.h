// Makes calls whose tensors are on an accelerator. The tensors are copied to pinned host memory on a separate stream, and the
// call uses these copies. The results are copied back on the same stream.
//
// The caller does not block. The separate stream waits for the caller's current stream. The thread of the lane waits for the
// separate stream before it makes the call. The code works with any kind of device, because it uses the streams and events that
// torch's device guards offer.
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

// Runs tasks in their order on one thread. The thread starts with the first task.
class Lane {
 public:
  ~Lane();
  void push(std::function<void()> task);
  bool idle() const { return pushed_.load(std::memory_order_acquire) == finished_.load(std::memory_order_acquire); }
  // Waits until all earlier tasks are done.
  void drain();
  // Runs the task outside the lane's thread: in the calling thread, or, if this is the lane's thread, in a thread of a pool.
  // Use it for tasks that may wait for a later task of the lane.
  void run_outside_lane(std::function<void()> task);
  // Keeps the object `what` alive until the event has passed.
  void keep(std::shared_ptr<c10::Event> until, std::shared_ptr<void> what);
  // Waits until all tasks are done and no object is kept alive any more. From then on, no more tasks are accepted.
  void close();
  bool closed() const;

 private:
  struct Kept {
    std::shared_ptr<c10::Event> until;
    std::shared_ptr<void> what;
  };
  void work();

  mutable std::mutex mutex_;
  std::condition_variable task_pushed_, task_finished_;
  std::deque<std::function<void()>> tasks_;
  std::vector<Kept> kept_;
  std::atomic<uint64_t> pushed_{0}, finished_{0};
  bool closed_ = false;
  std::thread thread_;
  const std::shared_ptr<CallbackPool> pool_ = std::make_shared<CallbackPool>();
};

// The copies in host memory of the tensors of one call. They are made on a separate stream, which waits for the caller's
// current stream.
class Staging {
 public:
  using Tensors = std::vector<at::Tensor>;
  // `what` names the call, and is a literal. Throws TypeError if the tensors are not dense, or are not all on one device.
  Staging(const char* what, const std::vector<const Tensors*>& all);

  // out() and in_and_out() throw what check_output() throws.
  // Each function returns host memory. in() copies the values of the tensors to it, as they are at this point of the caller's
  // stream. For out(), copy_back() later copies the memory to the tensors. in_and_out() does both.
  Tensors in(const Tensors& tensors);
  Tensors out(const Tensors& tensors);
  Tensors in_and_out(const Tensors& tensors);
  // Call after the last in() or in_and_out().
  void end_inputs();
  // Blocks until the copies to the host are complete.
  void wait();
  // Starts to copy the results back. The returned event passes when these copies are complete. It is null if nothing is copied.
  std::shared_ptr<c10::Event> copy_back();

  at::Device device() const { return device_; }
  c10::Stream stream() const { return stream_; }

 private:
  Tensors memory_for(const Tensors& tensors) const;

  const char* const what_;  // the name of the call
  const at::Device device_;
  const c10::Stream stream_;
  bool pinned_ = false;
  Tensors read_;  // tensors on the device, which are kept until their copies are complete
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;
  std::unique_ptr<c10::Event> copied_;
};

// Returns true if the tensor, dense or sparse, is on the CPU. Such a tensor needs no copy.
bool on_host(const at::Tensor& tensor);

struct StagedSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::vector<at::Tensor> inputs{}, outputs{};  // these tensors are on the device
  bool by_rank = false;                         // true: the future's value is one tensor, and the outputs are its rows
  uint64_t sequence = 0, identity = 0;
};

// The Work for which torch waits. wait() blocks until the operation has ended. Then it makes the current stream wait until the
// results have been copied back.
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

  // These functions have the same meaning as in TorchWork.
  uint64_t identity() const { return setup_.identity; }
  std::vector<at::Device> devices() const { return {stream_.device()}; }
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  Report report() const;

  // Completes the work. Call this only once. `ready` passes when the outputs are complete. It is null if nothing is copied
  // back.
  void complete(std::exception_ptr error, c10::intrusive_ptr<TorchWork> operation, std::shared_ptr<c10::Event> ready);
  // Returns the event that complete() was given. The work must be complete.
  std::shared_ptr<c10::Event> ready() const;

 private:
  void fulfil();
  c10::IValue value() const;
  void end_record();

  const StagedSetup setup_;
  const c10::Stream stream_;
  mutable std::mutex state_;  // this is not named mutex_ because c10d::Work has a member with that name
  std::condition_variable completed_condition_;
  bool done_ = false;
  std::exception_ptr error_;
  std::shared_ptr<c10::Event> ready_;
  c10::intrusive_ptr<TorchWork> operation_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
  std::atomic<bool> recorded_{false};
};

}  // namespace unisono::torch_backend

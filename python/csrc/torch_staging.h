// Calls with tensors of an accelerator: they are copied to pinned memory of the host on a stream of their own, the call is made
// with the copies, and what it gives is copied back on that stream.
//
// The caller is not blocked: its current stream is waited for by that stream, which the lane's thread waits for before it makes
// the call. Nothing here names a kind of device: streams and events are those of torch's device guards.
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

// Does what it is given in that order, on one thread, which starts with the first task.
class Lane {
 public:
  ~Lane();
  void push(std::function<void()> task);
  bool idle() const { return given_.load(std::memory_order_acquire) == finished_.load(std::memory_order_acquire); }
  // Waits until all is done that was given before.
  void drain();
  // Runs it here, or on another thread where this is the lane's: what may wait for a later task of the lane.
  void run_off(std::function<void()> task);
  // Keeps it alive until the event has passed.
  void keep(std::shared_ptr<c10::Event> until, std::shared_ptr<void> what);
  // Waits until all is done and nothing is kept; takes no more tasks.
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

// The tensors of one call on the host. Made on the caller's thread, whose current stream it follows.
class Staging {
 public:
  using Tensors = std::vector<at::Tensor>;
  // TypeError: they are not dense tensors on one device.
  Staging(const char* what, const std::vector<const Tensors*>& all);

  // Copies with the values that are there when the caller's stream comes to this point; memory for what is to be copied back;
  // both.
  Tensors in(const Tensors& tensors);
  Tensors out(const Tensors& tensors);
  Tensors in_and_out(const Tensors& tensors);
  // After the last of them.
  void given();
  // Blocks until the copies are there.
  void wait();
  // Brings back what came; the event passes when it is there.
  std::shared_ptr<c10::Event> copy_back();

  at::Device device() const { return device_; }
  c10::Stream stream() const { return stream_; }

 private:
  Tensors memory_for(const Tensors& tensors) const;

  const at::Device device_;
  const c10::Stream stream_;
  bool pinned_ = false;
  Tensors read_;  // kept until their copies are there
  std::vector<std::pair<at::Tensor, at::Tensor>> back_;
  std::unique_ptr<c10::Event> copied_;
};

// Dense or not, on the CPU: no staging.
bool on_host(const at::Tensor& tensor);

struct StagedSetup {
  int rank = 0;
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = nullptr;
  std::vector<at::Tensor> inputs{}, outputs{};  // of the device
  bool by_rank = false;                         // the future has one tensor, with the outputs as its rows
  uint64_t sequence = 0, identity = 0;
};

// What torch waits for. wait() blocks until the operation has ended, then makes the current stream wait for the copies back.
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

  // As TorchWork has them.
  uint64_t identity() const { return setup_.identity; }
  std::vector<at::Device> devices() const { return {stream_.device()}; }
  void adopt(const c10::intrusive_ptr<c10::ivalue::Future>& future);
  Report report() const;

  // Once. `ready` passes when the outputs are there; none: nothing was copied back.
  void complete(std::exception_ptr error, c10::intrusive_ptr<TorchWork> operation, std::shared_ptr<c10::Event> ready);
  // Of a work that is complete.
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

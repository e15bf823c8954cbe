// The backend that torch.distributed registers as `unisono`. It passes all calls on to one UnisonoBackend. If the tensors of a
// call are on an accelerator, they go through pinned memory (torch_staging.h).
//
// torch registers one object for all kinds of devices, so this class looks where the tensors of each call are. The group must
// get the calls in the order in which they were made. So a call with CPU tensors first waits until all earlier calls with
// device tensors have begun.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torch_backend.h"
#include "torch_staging.h"

namespace unisono::torch_backend {

class StagedBackend final : public c10d::Backend {
 public:
  static c10::intrusive_ptr<StagedBackend> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                const c10::intrusive_ptr<BackendOptions>& options);
  explicit StagedBackend(c10::intrusive_ptr<UnisonoBackend> inner);
  ~StagedBackend() override;

  const std::string getBackendName() const override { return backend_name; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return inner_->getBackendOptions(); }
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  // Messages of a batch begin when the batch ends. If one of them is refused, endCoalescing() throws its error, and none
  // begins. The single call must not throw: torch would leave the batch open, and add all later calls to it.
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  // Ends a batch without its messages. Other calls of the batch that have begun go on.
  void abandon_batch();
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  void shutdown() override { end({}); }
  // As in UnisonoBackend. Does nothing in a forked child.
  void end(const std::string& failure);
  // Like end(), for this backend and all that were split from it.
  void end_all(const std::string& failure);
  c10d::ErrorType getError() override { return inner_->getError(); }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override;
  void enableCollectivesTiming() override {}
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options) override;
  c10::intrusive_ptr<Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                     const c10::intrusive_ptr<Options>& options) override;

  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using WorkPointer = c10::intrusive_ptr<c10d::Work>;
  WorkPointer broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPointer allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return host().allreduce_sparse(tensors, options);
  }
  WorkPointer allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPointer reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPointer allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPointer allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  WorkPointer gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPointer scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPointer reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPointer _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPointer reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  WorkPointer alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  WorkPointer alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPointer send(Tensors& tensors, int to, int tag) override;
  WorkPointer recv(Tensors& tensors, int from, int tag) override;
  WorkPointer recvAnysource(Tensors& tensors, int tag) override;
  // If options.device_ids is not empty, this first waits for the work that is enqueued on the current stream of that device.
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override {
    host().monitoredBarrier(options, wait_for_all);
  }

  WorkPointer all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average);
  WorkPointer reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error, const Codec& codec,
                                           bool average);
  Group group() const { return inner_->group(); }
  bool over() const { return inner_->over(); }
  // Returns whether this backend and all that were split from it have been shut down, and whether none of their threads is
  // running a task.
  bool all_over() const;
  Report last_report() const { return inner_->last_report(); }
  const CallSettings& call_settings() const { return inner_->call_settings(); }
  void check_error_feedback() const { inner_->check_error_feedback(); }

 private:
  // Returns the backend for calls with CPU tensors. Waits first until earlier calls with device tensors have begun.
  UnisonoBackend& host() {
    inner_->check_process();
    if (!lane_->idle()) lane_->drain();
    return *inner_;
  }
  using Start = std::function<WorkPointer(UnisonoBackend&)>;
  // Makes the call as soon as the copies to the host are complete.
  WorkPointer begin(StagedSetup setup, const std::shared_ptr<Staging>& staging, Start start);
  void assign_identity(StagedSetup& setup, CallContext& carried);
  using Message = UnisonoBackend::Message;
  // If a batch is open, adds the message to it, and returns a Work for which nobody must wait. Otherwise begins the message.
  WorkPointer send_or_recv(Message message);
  WorkPointer begin_message(Message& message);
  WorkPointer joint(const std::vector<c10::intrusive_ptr<StagedWork>>& works, const WorkPointer& whole);
  c10::intrusive_ptr<c10d::Backend> split_off(const c10::intrusive_ptr<c10d::Backend>& inner);
  std::vector<c10::intrusive_ptr<StagedBackend>> split_backends() const;

  const c10::intrusive_ptr<UnisonoBackend> inner_;
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  // Locked while a call gets its number and is enqueued. So the numbers match the order of the calls in the lane.
  mutable std::mutex order_;
  uint64_t sequence_ = 0;  // number of the next call; it is valid only while the lane has tasks
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<StagedWork>> coalesced_;
  bool collects_messages_ = false;  // true: messages are kept until the batch ends
  std::vector<Message> messages_;
  std::exception_ptr refused_;  // the first error of the messages
  std::vector<c10::weak_intrusive_ptr<StagedBackend>> split_backends_;
};

}  // namespace unisono::torch_backend

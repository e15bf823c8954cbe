// The backend that torch.distributed gets as `unisono`: a UnisonoBackend for CPU tensors, and the same one through pinned
// memory for tensors of an accelerator (torch_staging.h).
//
// torch registers one object for all kinds of devices, so calls are distinguished by their tensors. All calls go to one group,
// in the order in which they were made: a call with CPU tensors first waits until all earlier calls with device tensors have
// begun.
#pragma once

#include <memory>
#include <mutex>
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
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override { inner_->setTimeout(timeout); }
  void abort() override { inner_->abort(); }
  void shutdown() override;
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
  // With device_ids: waits for the work enqueued on that device's current stream first.
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override {
    host().monitoredBarrier(options, wait_for_all);
  }

  WorkPointer all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average);
  WorkPointer reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error, const Codec& codec,
                                           bool average);
  Group group() const { return inner_->group(); }
  bool over() const { return inner_->over(); }
  Report last_report() const { return inner_->last_report(); }

 private:
  // For calls with CPU tensors.
  UnisonoBackend& host() {
    if (!lane_->idle()) lane_->drain();
    return *inner_;
  }
  using Start = std::function<WorkPointer(UnisonoBackend&)>;
  // Makes the call, with the copies, once they are complete.
  WorkPointer begin(StagedSetup setup, const std::shared_ptr<Staging>& staging, Start start);
  void place(StagedSetup& setup, CallContext& carried);
  WorkPointer joint(const std::vector<c10::intrusive_ptr<StagedWork>>& works, const WorkPointer& whole);

  const c10::intrusive_ptr<UnisonoBackend> inner_;
  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
  std::mutex order_;       // of calls: their numbers must match the order inside
  uint64_t sequence_ = 0;  // while the lane is busy: the next number
  bool coalescing_ = false;
  std::vector<c10::intrusive_ptr<StagedWork>> coalesced_;
};

}  // namespace unisono::torch_backend

// The backend `unisono` of torch.distributed: every collective of c10d::Backend for dense tensors, over one unisono::Group.
//
// Calls with asyncOp = false run on the caller's thread until they end. Other calls return at once, and a waiting thread drives
// them. Ranks match calls by call order. Calls made inside a future's callback (CallContext) are matched by the identity of the
// callback.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torch_work.h"
#include "unisono/group.h"

namespace unisono::torch_backend {

inline constexpr const char* backend_name = "unisono";

// Settings of one call that differ from the group's defaults; texts as Unisono's own options read them.
struct CallSettings {
  std::optional<Codec> codec{};
  ScheduleKind schedule = ScheduleKind::automatic;
  Order order = Order::automatic;
  Delivery delivery = Delivery::reliable;
  DeliveryOptions lossy{};
};

struct BackendOptions : c10d::Backend::Options {
  explicit BackendOptions(std::chrono::milliseconds time = kBackendDefaultTimeout) : Options(backend_name, time) {}
  BackendOptions(const BackendOptions&) = default;

  unisono::Options join{};  // transport, interface, codec, ...; torch provides rank, world size and the store
  CallSettings calls{};
};

// Per thread: settings of its calls, and how they are matched.
struct CallContext {
  std::optional<CallSettings> settings{};
  uint64_t place =
      0;  // not 0: calls are matched by this number and their count in it, as ranks may reach the callback in different orders
  uint64_t calls = 0;
};
CallContext& call_context();

class UnisonoBackend final : public c10d::Backend {
 public:
  // Meets the other ranks through `store`.
  static c10::intrusive_ptr<UnisonoBackend> join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                 const c10::intrusive_ptr<BackendOptions>& options);
  UnisonoBackend(Group group, c10::intrusive_ptr<BackendOptions> options);
  ~UnisonoBackend() override;

  const std::string getBackendName() const override { return backend_name; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  c10::intrusive_ptr<c10d::Work> endCoalescing() override;
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  void shutdown() override;
  c10d::ErrorType getError() override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
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
  WorkPointer allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
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
  WorkPointer barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_for_all) override;

  // In-place sum or average of an fp32 tensor with a codec and error feedback. `error` has the same size. It is added first,
  // and afterwards holds this rank's encoding error (CallOptions::error_feedback).
  WorkPointer all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average);
  // The same for a reduce-scatter; `error` has the size of `input`.
  WorkPointer reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error, const Codec& codec,
                                           bool average);

  // The underlying group, for functions that torch's interface lacks.
  Group group() const;
  // True after shutdown.
  bool over() const;
  // Report of the last operation that ended.
  Report last_report() const;
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }

 private:
  struct Call;
  struct Shared;

  // type: kind of the call; some kinds take no codec, or do not use the group's schedule.
  CallOptions call_options(std::chrono::milliseconds timeout, c10d::OpType type);
  template <typename Start, typename Run>
  WorkPointer run(Call&& call, Start&& start, Run&& run);
  using Part = std::function<unisono::Work(Group&, const CallOptions&)>;
  // Checks all parts before any of them begins, so an error has no side effects.
  WorkPointer run_all(Call&& call, const std::vector<Part>& parts);
  WorkPointer issue(WorkSetup setup, std::vector<unisono::Work> parts);
  WorkSetup setup_of(Call&& call);
  Group checked_group(bool* coalescing = nullptr) const;
  std::pair<std::string, std::string> names_of(const std::vector<uint32_t>& ranks) const;

  const c10::intrusive_ptr<BackendOptions> options_;
  std::atomic<int64_t> timeout_ms_;
  std::atomic<uint64_t> sequence_{0};
  const std::shared_ptr<CallbackPool> pool_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace unisono::torch_backend

// The backend `unisono` of torch.distributed. It implements every collective of c10d::Backend for dense tensors, and uses one
// unisono::Group for this.
//
// A call with asyncOp = false runs on the caller's thread until it ends. Any other call returns at once, and the thread that
// later waits for it makes it progress. Ranks match calls by their order. But if a call is made in the callback of a future,
// ranks match it by the identity of this callback (CallContext).
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

// Settings of calls. They are parsed from the same texts that Unisono's options accept.
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

  unisono::Options join{};  // transport, interface, codec, and so on; torch provides rank, world size and store
  CallSettings calls{};
};

// The settings of the calls of one thread, and the identity by which the ranks match these calls.
struct CallContext {
  std::optional<CallSettings> settings{};
  // Identity of the callback that is running, or 0 if none is. Ranks match its calls by this number and by `calls`.
  uint64_t callback_id = 0;
  uint64_t calls = 0;
};
CallContext& call_context();

// Groups that are joined after this call pass their events to the handler.
void set_event_handler(const EventHandler& handler);

class UnisonoBackend final : public c10d::Backend {
 public:
  // Joins the group. The ranks find each other through `store`.
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
  // Ends the batch that startCoalescing() began. Calls of the batch that have begun go on, and nobody waits for them.
  void abandon_batch();
  void setTimeout(std::chrono::milliseconds timeout) override;
  void abort() override;
  // Waits until the operations that other ranks may need have ended, and until callbacks have run, but not longer than the
  // group's timeout. Aborts what is in flight then: receives, for example. Runs the handlers of signals meanwhile; if one of
  // them raises an exception, aborts at once and throws the exception. Afterwards, no thread of this backend is running.
  void shutdown() override { end({}); }
  // Like shutdown(), but if `failure` is not empty, does not wait. `failure` names the exception that has ended the program;
  // other ranks read it.
  void end(const std::string& failure);
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

  // A message, as send() and recv() get it. `peer`: nullopt if any rank may have sent it.
  struct Message {
    const char* what = nullptr;  // the name of the call
    bool receives = false;
    Tensors tensors{};
    std::optional<int> peer{};
    int tag = 0;
  };
  // Throws an error if the message cannot be sent or received. Works for tensors of any device.
  void check_message(const Message& message) const;

  // Sums or averages an fp32 tensor in place, with a codec and error feedback. `error` must have the size of `tensor`. It is
  // first added to the tensor, and then it receives the error that this rank's encoding has caused
  // (CallOptions::error_feedback).
  WorkPointer all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average);
  // Makes a reduce-scatter with a codec and error feedback. `error` must have the size of `input`.
  WorkPointer reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error, const Codec& codec,
                                           bool average);

  // Returns the group that this backend uses, for functions that torch's interface does not offer.
  Group group() const;
  // Returns true after shutdown(), and in a forked child.
  bool over() const;
  // Returns true in a child made by fork(), which is no member of the group.
  bool forked() const { return pool_->owner().forked(); }
  // Throws an error in a forked child. Call it before any lock is taken: another thread may have held the lock at the fork.
  void check_process() const;
  // Returns whether no thread of this backend is running a task.
  bool idle() const { return pool_->idle(); }
  // Returns the report of the operation that ended last.
  Report last_report() const;
  // Returns the settings of the calls that this thread makes now: those of unisono.torch.call_options, or else those of the
  // group.
  const CallSettings& call_settings() const;
  // Throws ValueError if these settings ask for lossy delivery, which cannot be combined with error feedback.
  void check_error_feedback() const;
  std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(timeout_ms_.load()); }

 private:
  struct Call;
  struct Shared;

  // Returns the options for a call. Some kinds of calls (`type`) cannot use a codec, or ignore the group's schedule.
  CallOptions call_options(std::chrono::milliseconds timeout, c10d::OpType type);
  // Sets the delivery of an all-reduce, if sums of this kind can be lossy at all.
  void set_delivery(CallOptions& options, DType dtype) const;
  // start(Group&, const CallOptions&) starts the operation.
  template <typename Start>
  WorkPointer run(Call&& call, Start&& start);
  // Waits for an operation that was started with Group::polling(). If a signal ends the wait, the operation continues.
  void wait_for(const std::shared_ptr<Outcome>& outcome);
  void wait_for_needed();
  void abort_rest(const std::string& why);
  using Part = std::function<unisono::Work(Group&, const CallOptions&)>;
  // Starts several operations as one call. All of them are checked before the first one begins, so an error has no side
  // effects.
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

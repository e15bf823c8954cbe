// Declarations that several files of UnisonoBackend need: a call that is being prepared, and the state that the backend shares
// with running operations.
#pragma once

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "torch_backend.h"
#include "torch_tensors.h"

namespace unisono::torch_backend {

using c10d::OpType;
using WorkPointer = UnisonoBackend::WorkPointer;

[[noreturn]] inline void fail(const Status& status, const std::string& what) {
  std::rethrow_exception(exception_of(status, what));
}
uint64_t mixed(uint64_t a, uint64_t b);

// Returns the options of a sum or average with error feedback. `error` is first added to the input, and then it receives the
// new error of the encoding.
inline CallOptions with_feedback(CallOptions o, const at::Tensor& error, const Codec& codec, bool average) {
  o.op = average ? unisono::ReduceOp::avg : unisono::ReduceOp::sum;
  o.codec = codec;
  o.encode_error = error.data_ptr<float>();
  o.error_feedback = true;
  return o;
}

struct UnisonoBackend::Call {
  OpType type = OpType::UNKNOWN;
  const char* title = nullptr;
  bool async = true;
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
  Tensors inputs{}, outputs{}, kept{};
  std::vector<std::function<void()>> copies{};
};

// The state that the backend shares with its running operations.
struct UnisonoBackend::Shared final : Listener {
  mutable std::mutex mutex;
  std::optional<Group> group;  // nullopt after shutdown()
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;
  Report last;
  bool coalescing = false;
  std::vector<c10::intrusive_ptr<TorchWork>> coalesced;
  std::vector<unisono::Work> coalesced_parts;
  std::vector<std::weak_ptr<Outcome>> outcomes;  // those of the calls that have not been released; some may have ended
  size_t outcomes_kept = 64;                     // when there are so many, expired ones are removed

  void add(const std::shared_ptr<Outcome>& outcome) {
    const std::lock_guard lock(mutex);
    if (outcomes.size() >= outcomes_kept) {
      std::erase_if(outcomes, [](const auto& one) { return one.expired(); });
      outcomes_kept = std::max<size_t>(64, 2 * outcomes.size());
    }
    outcomes.push_back(outcome);
  }
  // Returns the outcomes of the operations that have not ended. The last reference to a tensor may be released with the
  // vector, and this may need the GIL, so this function releases no reference while it holds the lock.
  std::vector<std::shared_ptr<Outcome>> in_flight() const {
    std::vector<std::shared_ptr<Outcome>> all;
    {
      const std::lock_guard lock(mutex);
      for (const auto& one : outcomes) all.push_back(one.lock());
    }
    std::erase_if(all, [](const auto& one) { return one == nullptr || one->settled(); });
    return all;
  }
  void ended(const Status& status, const Report& report) override {
    const std::lock_guard lock(mutex);
    last = report;
    if (status.ok()) return;
    error = status.code() == Code::late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
  }
};

template <typename Start>
WorkPointer UnisonoBackend::run(Call&& call, Start&& start) {
  bool coalescing = false;
  auto group = checked_group(&coalescing);
  const auto options = call_options(call.timeout, call.type);
  // Profilers watch a Work while its operation runs. So if there is a profiler, the operation is asynchronous even if the call
  // is not.
  const bool later = call.async || coalescing || at::hasCallbacks();
  auto setup = setup_of(std::move(call));
  if (later) return issue(std::move(setup), {start(group, options)});
  auto polling = group.polling();
  auto work = start(polling, options);
  if (work.done()) {  // this is the fast path of small calls
    auto report = work.wait();
    if (is_signal_thread()) set_interrupted(false);
    if (report) return c10::make_intrusive<TorchWork>(std::move(setup), std::move(report));
  }
  auto outcome = std::make_shared<Outcome>(std::move(setup), std::vector{std::move(work)});
  wait_for(outcome);
  return c10::make_intrusive<TorchWork>(std::move(outcome));
}

}  // namespace unisono::torch_backend

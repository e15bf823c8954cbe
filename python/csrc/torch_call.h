// Shared by the files of UnisonoBackend: a call being prepared, and the state that the backend shares with calls in flight.
#pragma once

#include <ATen/record_function.h>

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

// Options of a sum or average with error feedback: `error` is added to the input, and then receives the new encoding error.
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

// State shared by the backend and its operations in flight.
struct UnisonoBackend::Shared final : Listener {
  mutable std::mutex mutex;
  std::optional<Group> group;  // none: shut down
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;
  Report last;
  bool coalescing = false;
  std::vector<c10::intrusive_ptr<TorchWork>> coalesced;
  std::vector<unisono::Work> coalesced_parts;

  void ended(const Status& status, const Report& report) override {
    const std::lock_guard lock(mutex);
    last = report;
    if (status.ok()) return;
    error = status.code() == Code::late ? c10d::ErrorType::TIMEOUT : c10d::ErrorType::COMM_ERROR;
  }
};

template <typename Start, typename Run>
WorkPointer UnisonoBackend::run(Call&& call, Start&& start, Run&& run) {
  bool coalescing = false;
  auto group = checked_group(&coalescing);
  const auto options = call_options(call.timeout, call.type);
  // Profilers watch a Work that exists while its operation runs.
  const bool later = call.async || coalescing || at::hasCallbacks();
  auto setup = setup_of(std::move(call));
  if (later) return issue(std::move(setup), {start(group, options)});
  return c10::make_intrusive<TorchWork>(std::move(setup), run(group, options));
}

}  // namespace unisono::torch_backend

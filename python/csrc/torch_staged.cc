// Runs calls whose tensors are on an accelerator, and the functions of the group.
#include "torch_staged.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <utility>

#include "torch_call.h"

namespace unisono::torch_backend {

c10::intrusive_ptr<StagedBackend> StagedBackend::join(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                      const c10::intrusive_ptr<BackendOptions>& options) {
  return c10::make_intrusive<StagedBackend>(UnisonoBackend::join(store, rank, size, options));
}

StagedBackend::StagedBackend(c10::intrusive_ptr<UnisonoBackend> inner)
    : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {
  init();
}

// A forked child has none of the threads, and must not end its parent's group. So it never frees what they use.
StagedBackend::~StagedBackend() {
  if (inner_->forked()) {
    (void)new auto(lane_);
    (void)new auto(inner_);
  } else {
    lane_->close();
  }
}

void StagedBackend::end(const std::string& failure) {
  if (inner_->forked()) return;
  without_gil([&] {
    lane_->close();
    inner_->end(failure);
  });
}

void StagedBackend::end_all(const std::string& failure) {
  if (inner_->forked()) return;
  for (const auto& one : split_backends()) one->end_all(failure);
  end(failure);
}

bool StagedBackend::all_over() const {
  if (inner_->forked()) return true;
  return inner_->over() && inner_->idle() &&
         std::ranges::all_of(split_backends(), [](const auto& one) { return one->all_over(); });
}

std::vector<c10::intrusive_ptr<StagedBackend>> StagedBackend::split_backends() const {
  std::vector<c10::intrusive_ptr<StagedBackend>> all;
  {
    const std::lock_guard lock(order_);
    for (const auto& one : split_backends_) all.push_back(one.lock());
  }
  std::erase_if(all, [](const auto& one) { return !one.defined(); });
  return all;
}

// Calls -------------------------------------------------------------------------------------------------------------

// Sets the sequence number of a call, and the identity by which ranks match the call. The identity comes from the position of
// the call. If a callback is running, this is the position among the calls of the callback. Otherwise, it is the position among
// all calls. `carried` becomes the context in which the lane (the thread that makes the calls) later starts the operations of
// this call. Within a callback, the identities of these operations are derived from the identity of the call.
void StagedBackend::assign_identity(StagedSetup& setup, CallContext& carried) {
  if (lane_->idle()) sequence_ = inner_->getSequenceNumberForGroup();
  auto& context = call_context();
  carried = context;
  if (context.callback_id == 0) {
    setup.sequence = sequence_++;
    setup.identity = mixed(setup.sequence, 0);
    return;
  }
  carried.callback_id = mixed(context.callback_id, context.calls++) | 1;
  carried.calls = 0;
  setup.sequence = sequence_;
  setup.identity = carried.callback_id;
}

WorkPointer StagedBackend::begin(StagedSetup setup, const std::shared_ptr<Staging>& staging, Start start) {
  inner_->check_process();
  setup.rank = rank_;
  staging->end_inputs();
  const std::lock_guard lock(order_);
  CallContext carried;
  assign_identity(setup, carried);
  auto work = c10::make_intrusive<StagedWork>(std::move(setup), staging->stream());
  lane_->push([inner = inner_, lane = lane_, work, staging, start = std::move(start), carried] {
    c10::intrusive_ptr<TorchWork> operation;
    const auto before = std::exchange(call_context(), carried);
    try {
      staging->wait();
      operation = c10::dynamic_intrusive_pointer_cast<TorchWork>(start(*inner));
      TORCH_INTERNAL_ASSERT(operation != nullptr);
    } catch (...) {
      lane->run_outside_lane([work, error = std::current_exception()] { work->complete(error, nullptr, nullptr); });
    }
    call_context() = before;
    if (operation == nullptr) return;
    const auto end = [lane, work, staging, operation](std::exception_ptr error) {
      std::shared_ptr<c10::Event> ready;
      try {
        if (error == nullptr) ready = staging->copy_back();
      } catch (...) {
        error = std::current_exception();
      }
      if (ready != nullptr) lane->keep(ready, staging);
      work->complete(error, operation, ready);
    };
    auto ended = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    ended->addCallback(
        [lane, end](c10::ivalue::Future& future) {
          lane->run_outside_lane([end, error = future.hasError() ? future.exception_ptr() : nullptr] { end(error); });
        },
        false);
    operation->adopt(ended);
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

uint64_t StagedBackend::getSequenceNumberForGroup() {
  inner_->check_process();
  const std::lock_guard lock(order_);
  return lane_->idle() ? inner_->getSequenceNumberForGroup() : sequence_;
}

WorkPointer StagedBackend::barrier(const c10d::BarrierOptions& options) {
  const auto kind = at::accelerator::getAccelerator(false);
  if (options.device_ids.empty() || !kind || *kind == at::kCPU) return host().barrier(options);
  // A copy of this tensor has to wait for all work that is enqueued on the current stream.
  const Staging::Tensors mark{at::zeros(
      {1}, at::TensorOptions().dtype(at::kByte).device(*kind, static_cast<c10::DeviceIndex>(options.device_ids.front())))};
  const auto staging = std::make_shared<Staging>("barrier", std::vector{&mark});
  staging->in(mark);
  return begin({.type = OpType::BARRIER, .title = "unisono:barrier"}, staging, [options](UnisonoBackend& inner) {
    auto later = options;
    later.asyncOp = true;
    return inner.barrier(later);
  });
}

// Coalesced calls ---------------------------------------------------------------------------------------------------

void StagedBackend::startCoalescing() {
  host().startCoalescing();
  const std::lock_guard lock(order_);
  coalescing_ = collects_messages_ = true;
}

WorkPointer StagedBackend::send_or_recv(Message message) {
  inner_->check_process();
  {
    const std::lock_guard lock(order_);
    if (collects_messages_) {
      try {
        inner_->check_message(message);
        messages_.push_back(std::move(message));
      } catch (...) {
        if (refused_ == nullptr) refused_ = std::current_exception();
      }
      const Status not_alone(Code::invalid, "this message belongs to a batch: wait for the Work of the batch");
      return c10::make_intrusive<TorchWork>(WorkSetup{.rank = rank_, .type = OpType::UNKNOWN}, not_alone);
    }
  }
  return begin_message(message);
}

void StagedBackend::abandon_batch() {
  if (inner_->forked()) return;
  std::vector<c10::intrusive_ptr<StagedWork>> works;  // all are freed without the lock, because a tensor may need the GIL
  std::vector<Message> messages;
  std::exception_ptr refused;
  {
    const std::lock_guard lock(order_);
    coalescing_ = collects_messages_ = false;
    works.swap(coalesced_), messages.swap(messages_), std::swap(refused, refused_);
  }
  inner_->abandon_batch();
}

WorkPointer StagedBackend::endCoalescing() {
  inner_->check_process();
  std::vector<c10::intrusive_ptr<StagedWork>> works;
  std::vector<Message> messages;
  std::exception_ptr refused;
  {
    const std::lock_guard lock(order_);
    collects_messages_ = false;
    messages.swap(messages_), std::swap(refused, refused_);
  }
  try {
    if (refused != nullptr) std::rethrow_exception(refused);
    for (auto& message : messages) begin_message(message);
  } catch (...) {
    abandon_batch();
    throw;
  }
  {
    const std::lock_guard lock(order_);
    coalescing_ = false;
    works.swap(coalesced_);
  }
  auto whole = host().endCoalescing();
  return works.empty() ? whole : joint(works, whole);
}

// Returns one Work for a batch of calls. `works` are the calls whose tensors are on the device. `whole` is the Work for all
// operations of the batch, including those with CPU tensors.
WorkPointer StagedBackend::joint(const std::vector<c10::intrusive_ptr<StagedWork>>& works, const WorkPointer& whole) {
  StagedSetup setup{.rank = rank_, .type = OpType::COALESCED, .title = "unisono:coalesced"};
  for (const auto& work : works) {
    const auto outputs = work->result();
    setup.outputs.insert(setup.outputs.end(), outputs.begin(), outputs.end());
  }
  const auto operation = c10::dynamic_intrusive_pointer_cast<TorchWork>(whole);
  setup.sequence = operation->getSequencenumber();
  setup.identity = operation->identity();
  const auto device = works.front()->devices().front();
  const auto stream = c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device, true);
  auto all = c10::make_intrusive<StagedWork>(std::move(setup), stream);
  const auto left = std::make_shared<std::atomic<size_t>>(works.size() + 1);
  const auto one_ended = [all, works, operation, stream, left](c10::ivalue::Future&) {
    if (--*left > 0) return;
    auto error = operation->exception();
    for (const auto& work : works) {
      if (error == nullptr) error = work->exception();
      if (const auto ready = work->ready(); ready != nullptr) ready->block(stream);
    }
    auto ready = std::make_shared<c10::Event>(stream.device_type());
    ready->record(stream);
    all->complete(error, operation, ready);
  };
  whole->getFuture()->addCallback(one_ended, false);
  for (const auto& work : works) work->getFuture()->addCallback(one_ended, false);
  return all;
}

// Groups ------------------------------------------------------------------------------------------------------------

// Makes the backend of a group that was split from this one.
c10::intrusive_ptr<c10d::Backend> StagedBackend::split_off(const c10::intrusive_ptr<c10d::Backend>& inner) {
  if (inner == nullptr) return nullptr;
  auto made = c10::make_intrusive<StagedBackend>(c10::dynamic_intrusive_pointer_cast<UnisonoBackend>(inner));
  const std::lock_guard lock(order_);
  std::erase_if(split_backends_, [](const auto& one) { return one.expired(); });
  split_backends_.emplace_back(made);
  return made;
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  return split_off(host().split(store, ranks, options));
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                                        const c10::intrusive_ptr<Options>& options) {
  return split_off(host().shrink(ranks_to_exclude, flags, options));
}

}  // namespace unisono::torch_backend

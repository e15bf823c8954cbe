// Runs calls with tensors of a device, and functions of the group.
#include "torch_staged.h"

#include <ATen/DeviceAccelerator.h>
#include <c10/core/StreamGuard.h>

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

StagedBackend::~StagedBackend() {
  without_gil([this] { shutdown(); });
}

void StagedBackend::shutdown() {
  lane_->close();
  inner_->shutdown();
}

// Calls -------------------------------------------------------------------------------------------------------------

// Determines the call's position among calls, or within a callback. In a callback it gets a number of its own, because the
// numbers it uses inside are known only when it is made.
void StagedBackend::place(StagedSetup& setup, CallContext& carried) {
  if (lane_->idle()) sequence_ = inner_->getSequenceNumberForGroup();
  auto& context = call_context();
  carried = context;
  if (context.place == 0) {
    setup.sequence = sequence_++;
    setup.identity = mixed(setup.sequence, 0);
    return;
  }
  carried.place = mixed(context.place, context.calls++) | 1;
  carried.calls = 0;
  setup.sequence = sequence_;
  setup.identity = carried.place;
}

WorkPointer StagedBackend::begin(StagedSetup setup, const std::shared_ptr<Staging>& staging, Start start) {
  setup.rank = rank_;
  staging->given();
  const std::lock_guard lock(order_);
  CallContext carried;
  place(setup, carried);
  auto work = c10::make_intrusive<StagedWork>(std::move(setup), staging->stream());
  lane_->push([inner = inner_, lane = lane_, work, staging, start = std::move(start), carried] {
    c10::intrusive_ptr<TorchWork> operation;
    const auto before = std::exchange(call_context(), carried);
    try {
      staging->wait();
      operation = c10::dynamic_intrusive_pointer_cast<TorchWork>(start(*inner));
      TORCH_INTERNAL_ASSERT(operation != nullptr);
    } catch (...) {
      lane->run_off([work, error = std::current_exception()] { work->complete(error, nullptr, nullptr); });
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
          lane->run_off([end, error = future.hasError() ? future.exception_ptr() : nullptr] { end(error); });
        },
        false);
    operation->adopt(ended);
  });
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

uint64_t StagedBackend::getSequenceNumberForGroup() {
  const std::lock_guard lock(order_);
  return lane_->idle() ? inner_->getSequenceNumberForGroup() : sequence_;
}

WorkPointer StagedBackend::barrier(const c10d::BarrierOptions& options) {
  const auto kind = at::accelerator::getAccelerator(false);
  if (options.device_ids.empty() || !kind || *kind == at::kCPU) return host().barrier(options);
  // This tensor represents the work enqueued so far.
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

// Several at once ---------------------------------------------------------------------------------------------------

void StagedBackend::startCoalescing() {
  host().startCoalescing();
  const std::lock_guard lock(order_);
  coalescing_ = true;
}

WorkPointer StagedBackend::endCoalescing() {
  std::vector<c10::intrusive_ptr<StagedWork>> works;
  {
    const std::lock_guard lock(order_);
    coalescing_ = false;
    works.swap(coalesced_);
  }
  auto whole = host().endCoalescing();
  return works.empty() ? whole : joint(works, whole);
}

// One work for all of them. `whole` is the work of the enclosing batch, including calls with CPU tensors in between.
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

namespace {
c10::intrusive_ptr<c10d::Backend> staged(const c10::intrusive_ptr<c10d::Backend>& inner) {
  if (inner == nullptr) return nullptr;
  return c10::make_intrusive<StagedBackend>(c10::dynamic_intrusive_pointer_cast<UnisonoBackend>(inner));
}
}  // namespace

c10::intrusive_ptr<c10d::Backend> StagedBackend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                       const std::vector<int>& ranks,
                                                       const c10::intrusive_ptr<Options>& options) {
  return staged(host().split(store, ranks, options));
}

c10::intrusive_ptr<c10d::Backend> StagedBackend::shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                                        const c10::intrusive_ptr<Options>& options) {
  return staged(host().shrink(ranks_to_exclude, flags, options));
}

}  // namespace unisono::torch_backend

// Says which tensors each call reads and which it writes, so that only these are copied. Refuses outputs that share memory.
#include "torch_call.h"
#include "torch_staged.h"

namespace unisono::torch_backend {

namespace {

bool on_host(const StagedBackend::Tensors& tensors) { return tensors.empty() || torch_backend::on_host(tensors.front()); }

// Returns the options with which the lane makes the call. The call is asynchronous, and the factor of a PREMUL_SUM is in host
// memory.
template <typename Options>
Options later(Options options) {
  options.asyncOp = true;
  if constexpr (requires { options.reduceOp; }) {
    const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(options.reduceOp.supplement_.get());
    if (factor != nullptr && factor->tensor_factor.defined())
      options.reduceOp = c10d::makePreMulSum(factor->tensor_factor.cpu());
  }
  return options;
}

std::shared_ptr<Staging> staging_of(const char* what, const std::vector<const StagedBackend::Tensors*>& all) {
  return std::make_shared<Staging>(what, all);
}

StagedBackend::Tensors flat(const StagedBackend::TensorLists& lists) {
  StagedBackend::Tensors all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

WorkPointer StagedBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  if (on_host(tensors)) return host().broadcast(tensors, options);
  const auto staging = staging_of("broadcast", {&tensors});
  auto copies = options.rootRank == rank_ ? staging->in(tensors) : staging->out(tensors);
  return begin({.type = OpType::BROADCAST, .title = "unisono:broadcast", .inputs = tensors, .outputs = tensors}, staging,
               [copies, o = later(options)](UnisonoBackend& inner) mutable { return inner.broadcast(copies, o); });
}

WorkPointer StagedBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (on_host(tensors)) return host().allreduce(tensors, options);
  const auto staging = staging_of("all_reduce", {&tensors});
  auto copies = staging->in_and_out(tensors);
  return begin({.type = OpType::ALLREDUCE, .title = "unisono:all_reduce", .inputs = tensors, .outputs = tensors}, staging,
               [copies, o = later(options)](UnisonoBackend& inner) mutable { return inner.allreduce(copies, o); });
}

WorkPointer StagedBackend::all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average) {
  if (torch_backend::on_host(tensor)) return host().all_reduce_with_feedback(tensor, error, codec, average);
  check_error_feedback();
  const Tensors both{tensor, error}, one{tensor};
  const auto staging = staging_of("all_reduce_with_feedback", {&both});
  auto copies = staging->in_and_out(both);
  return begin({.type = OpType::ALLREDUCE, .title = "unisono:all_reduce", .inputs = one, .outputs = one}, staging,
               [copies, codec, average](UnisonoBackend& inner) mutable {
                 return inner.all_reduce_with_feedback(copies[0], copies[1], codec, average);
               });
}

WorkPointer StagedBackend::reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error,
                                                        const Codec& codec, bool average) {
  if (torch_backend::on_host(input)) return host().reduce_scatter_with_feedback(output, input, error, codec, average);
  const Tensors to{output}, from{input}, lost{error};
  const auto staging = staging_of("reduce_scatter_with_feedback", {&to, &from, &lost});
  const auto read = staging->in(from), kept = staging->in_and_out(lost), made = staging->out(to);
  return begin({.type = OpType::_REDUCE_SCATTER_BASE, .title = "unisono:reduce_scatter_tensor", .inputs = from, .outputs = to},
               staging, [result = made[0], values = read[0], loss = kept[0], codec, average](UnisonoBackend& inner) mutable {
                 return inner.reduce_scatter_with_feedback(result, values, loss, codec, average);
               });
}

WorkPointer StagedBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_disjoint(tensors, "all_reduce_coalesced", {.same_views = true});
  if (on_host(tensors)) return host().allreduce_coalesced(tensors, options);
  const auto staging = staging_of("all_reduce_coalesced", {&tensors});
  auto copies = staging->in_and_out(tensors);
  return begin(
      {.type = OpType::ALLREDUCE_COALESCED, .title = "unisono:all_reduce_coalesced", .inputs = tensors, .outputs = tensors},
      staging, [copies, o = later(options)](UnisonoBackend& inner) mutable { return inner.allreduce_coalesced(copies, o); });
}

WorkPointer StagedBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  if (on_host(tensors)) return host().reduce(tensors, options);
  const auto staging = staging_of("reduce", {&tensors});
  auto copies = options.rootRank == rank_ ? staging->in_and_out(tensors) : staging->in(tensors);
  return begin({.type = OpType::REDUCE, .title = "unisono:reduce", .inputs = tensors, .outputs = tensors}, staging,
               [copies, o = later(options)](UnisonoBackend& inner) mutable { return inner.reduce(copies, o); });
}

WorkPointer StagedBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto all = flat(outputs);
  check_disjoint(all, "all_gather");
  if (on_host(inputs)) return host().allgather(outputs, inputs, options);
  const auto staging = staging_of("all_gather", {&inputs, &all});
  auto from = staging->in(inputs);
  TensorLists to;
  for (const auto& list : outputs) to.push_back(staging->out(list));
  return begin({.type = OpType::ALLGATHER, .title = "unisono:all_gather", .inputs = inputs, .outputs = all, .by_rank = true},
               staging, [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.allgather(to, from, o); });
}

WorkPointer StagedBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  if (torch_backend::on_host(input)) return host()._allgather_base(output, input, options);
  const Tensors inputs{input}, outputs{output};
  const auto staging = staging_of("all_gather_into_tensor", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin(
      {.type = OpType::_ALLGATHER_BASE, .title = "unisono:all_gather_into_tensor", .inputs = inputs, .outputs = outputs},
      staging,
      [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner._allgather_base(to[0], from[0], o); });
}

WorkPointer StagedBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  const auto all = flat(outputs);
  check_disjoint(all, "all_gather_coalesced", {.per_rank = inputs.size()});
  if (on_host(inputs)) return host().allgather_coalesced(outputs, inputs, options);
  const auto staging = staging_of("all_gather_coalesced", {&inputs, &all});
  auto from = staging->in(inputs);
  TensorLists to;
  for (const auto& list : outputs) to.push_back(staging->out(list));
  return begin(
      {.type = OpType::ALLGATHER_COALESCED, .title = "unisono:all_gather_coalesced", .inputs = inputs, .outputs = all}, staging,
      [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.allgather_coalesced(to, from, o); });
}

WorkPointer StagedBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
  check_disjoint(outputs, "all_gather_into_tensor_coalesced");
  if (on_host(inputs)) return host().allgather_into_tensor_coalesced(outputs, inputs, options);
  const auto staging = staging_of("all_gather_into_tensor_coalesced", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin({.type = OpType::ALLGATHER_COALESCED,
                .title = "unisono:all_gather_into_tensor_coalesced",
                .inputs = inputs,
                .outputs = outputs},
               staging, [from, to, o = later(options)](UnisonoBackend& inner) mutable {
                 return inner.allgather_into_tensor_coalesced(to, from, o);
               });
}

WorkPointer StagedBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  const auto all = flat(outputs);
  check_disjoint(all, "gather");
  if (on_host(inputs)) return host().gather(outputs, inputs, options);
  const auto staging = staging_of("gather", {&inputs, &all});
  auto from = staging->in(inputs);
  TensorLists to;
  for (const auto& list : outputs) to.push_back(staging->out(list));
  return begin({.type = OpType::GATHER, .title = "unisono:gather", .inputs = inputs, .outputs = all}, staging,
               [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.gather(to, from, o); });
}

WorkPointer StagedBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  if (on_host(outputs)) return host().scatter(outputs, inputs, options);
  const auto all = flat(inputs);
  const auto staging = staging_of("scatter", {&outputs, &all});
  TensorLists from;
  for (const auto& list : inputs) from.push_back(staging->in(list));
  auto to = staging->out(outputs);
  return begin({.type = OpType::SCATTER, .title = "unisono:scatter", .inputs = all, .outputs = outputs}, staging,
               [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.scatter(to, from, o); });
}

WorkPointer StagedBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  if (on_host(outputs)) return host().reduce_scatter(outputs, inputs, options);
  const auto all = flat(inputs);
  const auto staging = staging_of("reduce_scatter", {&outputs, &all});
  TensorLists from;
  for (const auto& list : inputs) from.push_back(staging->in(list));
  auto to = staging->out(outputs);
  return begin({.type = OpType::REDUCE_SCATTER, .title = "unisono:reduce_scatter", .inputs = all, .outputs = outputs}, staging,
               [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.reduce_scatter(to, from, o); });
}

WorkPointer StagedBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) {
  if (torch_backend::on_host(input)) return host()._reduce_scatter_base(output, input, options);
  const Tensors inputs{input}, outputs{output};
  const auto staging = staging_of("reduce_scatter_tensor", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin(
      {.type = OpType::_REDUCE_SCATTER_BASE, .title = "unisono:reduce_scatter_tensor", .inputs = inputs, .outputs = outputs},
      staging,
      [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner._reduce_scatter_base(to[0], from[0], o); });
}

WorkPointer StagedBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                           const c10d::ReduceScatterOptions& options) {
  check_disjoint(outputs, "reduce_scatter_tensor_coalesced");
  if (on_host(inputs)) return host().reduce_scatter_tensor_coalesced(outputs, inputs, options);
  const auto staging = staging_of("reduce_scatter_tensor_coalesced", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin({.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED,
                .title = "unisono:reduce_scatter_tensor_coalesced",
                .inputs = inputs,
                .outputs = outputs},
               staging, [from, to, o = later(options)](UnisonoBackend& inner) mutable {
                 return inner.reduce_scatter_tensor_coalesced(to, from, o);
               });
}

WorkPointer StagedBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  if (torch_backend::on_host(input)) return host().alltoall_base(output, input, output_splits, input_splits, options);
  const Tensors inputs{input}, outputs{output};
  const auto staging = staging_of("all_to_all_single", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin({.type = OpType::ALLTOALL_BASE, .title = "unisono:all_to_all_single", .inputs = inputs, .outputs = outputs},
               staging, [from, to, output_splits, input_splits, o = later(options)](UnisonoBackend& inner) mutable {
                 return inner.alltoall_base(to[0], from[0], output_splits, input_splits, o);
               });
}

WorkPointer StagedBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  check_disjoint(outputs, "all_to_all");
  if (on_host(inputs)) return host().alltoall(outputs, inputs, options);
  const auto staging = staging_of("all_to_all", {&inputs, &outputs});
  auto from = staging->in(inputs), to = staging->out(outputs);
  return begin({.type = OpType::ALLTOALL, .title = "unisono:all_to_all", .inputs = inputs, .outputs = outputs}, staging,
               [from, to, o = later(options)](UnisonoBackend& inner) mutable { return inner.alltoall(to, from, o); });
}

WorkPointer StagedBackend::send(Tensors& tensors, int to, int tag) {
  return send_or_recv({.what = "send", .tensors = tensors, .peer = to, .tag = tag});
}

WorkPointer StagedBackend::recv(Tensors& tensors, int from, int tag) {
  return send_or_recv({.what = "recv", .receives = true, .tensors = tensors, .peer = from, .tag = tag});
}

WorkPointer StagedBackend::recvAnysource(Tensors& tensors, int tag) {
  return send_or_recv({.what = "recv", .receives = true, .tensors = tensors, .tag = tag});
}

WorkPointer StagedBackend::begin_message(Message& message) {
  auto& tensors = message.tensors;
  const auto make = [receives = message.receives, peer = message.peer, tag = message.tag](UnisonoBackend& inner,
                                                                                          Tensors& memory) {
    if (!receives) return inner.send(memory, *peer, tag);
    return peer ? inner.recv(memory, *peer, tag) : inner.recvAnysource(memory, tag);
  };
  if (on_host(tensors)) return make(host(), tensors);
  const auto staging = staging_of(message.what, {&tensors});
  auto copies = message.receives ? staging->out(tensors) : staging->in(tensors);
  StagedSetup setup{.type = OpType::SEND, .title = "unisono:send", .inputs = tensors};
  if (message.receives) {
    setup.type = message.peer ? OpType::RECV : OpType::RECVANYSOURCE;
    setup.title = message.peer ? "unisono:recv" : "unisono:recvAnySource";
    setup.outputs = tensors;
  }
  return begin(std::move(setup), staging, [make, copies](UnisonoBackend& inner) mutable { return make(inner, copies); });
}

}  // namespace unisono::torch_backend

// Collectives that reduce, and collectives whose result goes to every rank.
#include "torch_call.h"

#include <algorithm>
#include <numeric>

namespace unisono::torch_backend {

WorkPointer UnisonoBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  auto& tensor = only(tensors, "broadcast");
  Call call{.type = OpType::BROADCAST,
            .title = "unisono:broadcast",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = tensors,
            .outputs = tensors};
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  const auto dense = here ? dense_input(tensor) : dense_output(tensor, false, "broadcast", call.copies);
  call.kept = {dense};
  const auto inout = moved_into(dense);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.broadcast_async(inout, root, o); });
}

WorkPointer UnisonoBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  auto& tensor = only(tensors, "all_reduce");
  Call call{.type = OpType::ALLREDUCE,
            .title = "unisono:all_reduce",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = tensors,
            .outputs = tensors};
  const auto dense = dense_output(tensor, true, "all_reduce", call.copies);
  const auto reduction = reduction_of(dense, options.reduceOp);
  call.kept = {dense};
  const auto with = [&](CallOptions o) {
    o.op = reduction.op;
    set_delivery(o, reduction.tensor.dtype);
    return o;
  };
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_reduce_async(reduction.tensor, with(o)); });
}

WorkPointer UnisonoBackend::all_reduce_with_feedback(at::Tensor& tensor, at::Tensor& error, const Codec& codec, bool average) {
  check_error_feedback();
  check_cpu(tensor, "all_reduce_with_feedback"), check_cpu(error, "all_reduce_with_feedback");
  TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && error.scalar_type() == at::kFloat && tensor.is_contiguous() &&
                        error.is_contiguous() && tensor.numel() == error.numel(),
                    "unisono: all_reduce_with_feedback takes two dense fp32 tensors of one size");
  Call call{.type = OpType::ALLREDUCE,
            .title = "unisono:all_reduce",
            .async = true,
            .inputs = {tensor},
            .outputs = {tensor},
            .kept = {tensor, error}};
  const auto with = [&](const CallOptions& o) {
    auto all = with_feedback(o, error, codec, average);
    set_delivery(all, DType::f32);  // an automatic call is reliable then, and its report says why
    return all;
  };
  const auto inout = moved_into(tensor);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.all_reduce_async(inout, with(o)); });
}

WorkPointer UnisonoBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK_VALUE(!tensors.empty(), "unisono: all_reduce_coalesced takes one tensor at least");
  Call call{.type = OpType::ALLREDUCE_COALESCED,
            .title = "unisono:all_reduce_coalesced",
            .async = true,
            .timeout = options.timeout,
            .inputs = tensors,
            .outputs = tensors};
  // A single operation reduces all tensors that have the same type.
  std::map<at::ScalarType, Tensors> by_type;
  for (const auto& tensor : tensors) check_cpu(tensor, "all_reduce_coalesced"), by_type[tensor.scalar_type()].push_back(tensor);
  std::vector<Part> parts;
  for (const auto& [type, same] : by_type) {
    const auto flat = flat_output(same, "all_reduce_coalesced", call.copies);
    if (!are_contiguous(same) || flat.data_ptr() != same.front().data_ptr()) flat.copy_(flat_input(same));
    const auto reduction = reduction_of(flat, options.reduceOp);
    call.kept.push_back(flat);
    parts.emplace_back([reduction](Group& g, CallOptions o) {
      o.op = reduction.op;
      return g.all_reduce_async(reduction.tensor, o);
    });
  }
  return run_all(std::move(call), parts);
}

WorkPointer UnisonoBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  auto& tensor = only(tensors, "reduce");
  Call call{.type = OpType::REDUCE,
            .title = "unisono:reduce",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = tensors,
            .outputs = tensors};
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  const bool scaled = static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::PREMUL_SUM;
  auto dense = here ? dense_output(tensor, true, "reduce", call.copies) : dense_input(tensor);
  if (!here && scaled) dense = dense.clone();  // only the root's tensor may change
  const auto reduction = reduction_of(dense, options.reduceOp);
  call.kept = {dense};
  const auto with = [&](CallOptions o) { return o.op = reduction.op, o; };
  const auto& t = reduction.tensor;
  return run(std::move(call), [&](Group& g, const CallOptions& o) {
    return g.reduce_async(t, here ? t : Tensor(nullptr, 0, t.dtype), root, with(o));
  });
}

WorkPointer UnisonoBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  auto& input = only(inputs, "all_gather");
  TORCH_CHECK_VALUE(outputs.size() == 1, "unisono: all_gather takes one list of outputs");
  check_list(outputs.front(), input, size_, "all_gather");
  Call call{.type = OpType::ALLGATHER,
            .title = "unisono:all_gather",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = inputs,
            .outputs = outputs.front()};
  const auto flat = flat_output(outputs.front(), "all_gather", call.copies), dense = dense_input(input);
  const auto counts = counts_of(outputs.front());
  call.kept = {flat, dense};
  if (counts.empty()) {
    // torch's hooks expect that the value of the future is one tensor, and that its first dimension is the rank.
    auto sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), size_);
    call.outputs = {flat.view(sizes)};
  }
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.all_gather_async(moved(dense), moved_into(flat), counts, o); });
}

WorkPointer UnisonoBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  check_cpu(output, "all_gather_into_tensor"), check_cpu(input, "all_gather_into_tensor"),
      check_same_type(output, input, "all_gather_into_tensor");
  TORCH_CHECK_VALUE(output.numel() == input.numel() * size_, "unisono: all_gather_into_tensor: an output of ", output.numel(),
                    " elements for ", size_, " inputs of ", input.numel());
  Call call{.type = OpType::_ALLGATHER_BASE,
            .title = "unisono:all_gather_into_tensor",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = {input},
            .outputs = {output}};
  const auto flat = dense_output(output, false, "all_gather_into_tensor", call.copies), dense = dense_input(input);
  call.kept = {flat, dense};
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.all_gather_async(moved(dense), moved_into(flat), {}, o); });
}

WorkPointer UnisonoBackend::allgather_coalesced(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == static_cast<size_t>(size_),
                    "unisono: all_gather_coalesced takes one list of outputs per rank, ", size_, "; ", outputs.size(),
                    " were given");
  Call call{.type = OpType::ALLGATHER_COALESCED,
            .title = "unisono:all_gather_coalesced",
            .timeout = options.timeout,
            .inputs = inputs};
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    Tensors of_ranks;
    for (auto& list : outputs) {
      TORCH_CHECK_VALUE(list.size() == inputs.size(), "unisono: all_gather_coalesced: ", list.size(), " outputs for ",
                        inputs.size(), " inputs");
      of_ranks.push_back(list[i]);
    }
    check_list(of_ranks, inputs[i], size_, "all_gather_coalesced");
    const auto flat = flat_output(of_ranks, "all_gather_coalesced", call.copies), dense = dense_input(inputs[i]);
    call.kept.insert(call.kept.end(), {flat, dense});
    call.outputs.insert(call.outputs.end(), of_ranks.begin(), of_ranks.end());
    parts.emplace_back([from = moved(dense), to = moved_into(flat), counts = counts_of(of_ranks)](
                           Group& g, const CallOptions& o) { return g.all_gather_async(from, to, counts, o); });
  }
  return run_all(std::move(call), parts);
}

WorkPointer UnisonoBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(),
                    "unisono: all_gather_into_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  Call call{.type = OpType::ALLGATHER_COALESCED,
            .title = "unisono:all_gather_into_tensor_coalesced",
            .timeout = options.timeout,
            .inputs = inputs,
            .outputs = outputs};
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i], "all_gather_into_tensor_coalesced"),
        check_same_type(outputs[i], inputs[i], "all_gather_into_tensor_coalesced");
    const auto flat = dense_output(outputs[i], false, "all_gather_into_tensor_coalesced", call.copies),
               dense = dense_input(inputs[i]);
    call.kept.insert(call.kept.end(), {flat, dense});
    parts.emplace_back([from = moved(dense), to = moved_into(flat)](Group& g, const CallOptions& o) {
      return g.all_gather_async(from, to, {}, o);
    });
  }
  return run_all(std::move(call), parts);
}

}  // namespace unisono::torch_backend

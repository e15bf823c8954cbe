// Collectives that have one block per rank (gather, scatter, reduce-scatter, all-to-all), and sums of sparse tensors.
#include "torch_call.h"

#include <algorithm>
#include <numeric>

namespace unisono::torch_backend {

namespace {

// Returns the input and the output of a reduce-scatter. An operation with a factor multiplies a copy of the input, so that the
// caller's input does not change.
std::pair<Reduction, Reduction> scattered(at::Tensor& flat, const at::Tensor& dense, const c10d::ReduceOp& op) {
  const bool scaled = static_cast<c10d::ReduceOp::RedOpType>(op) == c10d::ReduceOp::PREMUL_SUM;
  if (scaled) flat = flat.clone();
  return {reduction_of(flat, op), reduction_of(dense, scaled ? c10d::ReduceOp(c10d::ReduceOp::SUM) : op)};
}

}  // namespace

WorkPointer UnisonoBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  auto& input = only(inputs, "gather");
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  TORCH_CHECK_VALUE(outputs.size() == (here ? 1u : 0u),
                    "unisono: gather: ", here ? "the root needs one list of outputs" : "only the root has outputs");
  Call call{.type = OpType::GATHER,
            .title = "unisono:gather",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = inputs};
  const auto dense = dense_input(input);
  at::Tensor flat;
  std::vector<size_t> counts;
  if (here) {
    check_list(outputs.front(), input, size_, "gather");
    flat = flat_output(outputs.front(), "gather", call.copies);
    counts = counts_of(outputs.front());
    call.outputs = outputs.front();
  }
  call.kept = {flat, dense};
  const auto out = here ? moved_into(flat) : Tensor(nullptr, 0, moved(dense).dtype);
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.gather_async(moved(dense), out, root, counts, o); });
}

WorkPointer UnisonoBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  auto& output = only(outputs, "scatter");
  const auto root = static_cast<uint32_t>(options.rootRank);
  const bool here = static_cast<int>(root) == rank_;
  TORCH_CHECK_VALUE(inputs.size() == (here ? 1u : 0u),
                    "unisono: scatter: ", here ? "the root needs one list of inputs" : "only the root has inputs");
  Call call{.type = OpType::SCATTER,
            .title = "unisono:scatter",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .outputs = outputs};
  const auto dense = dense_output(output, false, "scatter", call.copies);
  at::Tensor flat;
  std::vector<size_t> counts;
  if (here) {
    check_list(inputs.front(), output, size_, "scatter");
    flat = flat_input(inputs.front());
    counts = counts_of(inputs.front());
    call.inputs = inputs.front();
  }
  call.kept = {flat, dense};
  const auto in = here ? moved(flat) : ConstTensor(nullptr, 0, moved(dense).dtype);
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.scatter_async(in, moved_into(dense), root, counts, o); });
}

WorkPointer UnisonoBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  auto& output = only(outputs, "reduce_scatter");
  TORCH_CHECK_VALUE(inputs.size() == 1, "unisono: reduce_scatter takes one list of inputs");
  check_list(inputs.front(), output, size_, "reduce_scatter");
  Call call{.type = OpType::REDUCE_SCATTER,
            .title = "unisono:reduce_scatter",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = inputs.front(),
            .outputs = outputs};
  auto flat = flat_input(inputs.front());
  const auto dense = dense_output(output, false, "reduce_scatter", call.copies);
  const auto [from, to] = scattered(flat, dense, options.reduceOp);
  auto counts = counts_of(inputs.front());
  for (auto& count : counts) count *= flat.is_complex() ? 2 : 1;
  call.kept = {flat, dense};
  const auto with = [&](CallOptions o) { return o.op = from.op, o; };
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.reduce_scatter_async(from.tensor, to.tensor, counts, with(o)); });
}

WorkPointer UnisonoBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                 const c10d::ReduceScatterOptions& options) {
  Tensors outputs{output}, inputs{input};
  check_cpu(output, "reduce_scatter_tensor"), check_cpu(input, "reduce_scatter_tensor"),
      check_same_type(output, input, "reduce_scatter_tensor");
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_, "unisono: reduce_scatter_tensor: an input of ", input.numel(),
                    " elements for ", size_, " outputs of ", output.numel());
  Call call{.type = OpType::_REDUCE_SCATTER_BASE,
            .title = "unisono:reduce_scatter_tensor",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = inputs,
            .outputs = outputs};
  auto flat = dense_input(input);
  const auto dense = dense_output(output, false, "reduce_scatter_tensor", call.copies);
  const auto [from, to] = scattered(flat, dense, options.reduceOp);
  call.kept = {flat, dense};
  const auto with = [&](CallOptions o) { return o.op = from.op, o; };
  return run(std::move(call),
             [&](Group& g, const CallOptions& o) { return g.reduce_scatter_async(from.tensor, to.tensor, {}, with(o)); });
}

WorkPointer UnisonoBackend::reduce_scatter_with_feedback(at::Tensor& output, at::Tensor& input, at::Tensor& error,
                                                         const Codec& codec, bool average) {
  for (const auto& tensor : {output, input, error}) {
    check_cpu(tensor, "reduce_scatter_with_feedback");
    TORCH_CHECK_VALUE(tensor.scalar_type() == at::kFloat && tensor.is_contiguous(),
                      "unisono: reduce_scatter_with_feedback takes dense fp32 tensors");
  }
  TORCH_CHECK_VALUE(input.numel() == output.numel() * size_ && error.numel() == input.numel(),
                    "unisono: reduce_scatter_with_feedback: ", output.numel(), " and ", error.numel(), " elements for ",
                    input.numel());
  Call call{.type = OpType::_REDUCE_SCATTER_BASE,
            .title = "unisono:reduce_scatter_tensor",
            .inputs = {input},
            .outputs = {output},
            .kept = {output, input, error}};
  const auto with = [&](const CallOptions& o) { return with_feedback(o, error, codec, average); };
  const auto from = moved(input);
  const auto to = moved_into(output);
  return run(std::move(call), [&](Group& g, const CallOptions& o) { return g.reduce_scatter_async(from, to, {}, with(o)); });
}

WorkPointer UnisonoBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                            const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty() && outputs.size() == inputs.size(),
                    "unisono: reduce_scatter_tensor_coalesced: ", outputs.size(), " outputs for ", inputs.size(), " inputs");
  Call call{.type = OpType::REDUCE_SCATTER_TENSOR_COALESCED,
            .title = "unisono:reduce_scatter_tensor_coalesced",
            .timeout = options.timeout,
            .inputs = inputs,
            .outputs = outputs};
  std::vector<Part> parts;
  for (size_t i = 0; i < inputs.size(); ++i) {
    check_cpu(inputs[i], "reduce_scatter_tensor_coalesced"),
        check_same_type(outputs[i], inputs[i], "reduce_scatter_tensor_coalesced");
    const auto dense = dense_output(outputs[i], false, "reduce_scatter_tensor_coalesced", call.copies);
    auto flat = dense_input(inputs[i]);
    const auto [from, to] = scattered(flat, dense, options.reduceOp);
    call.kept.insert(call.kept.end(), {flat, dense});
    parts.emplace_back([from = from, to = to](Group& g, CallOptions o) {
      o.op = from.op;
      return g.reduce_scatter_async(from.tensor, to.tensor, {}, o);
    });
  }
  return run_all(std::move(call), parts);
}

WorkPointer UnisonoBackend::alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                                          std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) {
  check_cpu(output, "all_to_all_single"), check_cpu(input, "all_to_all_single"),
      check_same_type(output, input, "all_to_all_single");
  Call call{.type = OpType::ALLTOALL_BASE,
            .title = "unisono:all_to_all_single",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = {input},
            .outputs = {output}};
  const auto to = dense_output(output, false, "all_to_all_single", call.copies), from = dense_input(input);
  const auto counts = [&](const std::vector<int64_t>& splits, const at::Tensor& tensor, const char* which) {
    const auto rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    std::vector<size_t> all;
    if (splits.empty()) {
      TORCH_CHECK_VALUE(rows % size_ == 0, "unisono: all_to_all_single: ", rows, " rows of the ", which,
                        " cannot be split evenly among ", size_, " ranks");
      all.assign(size_, moved(tensor).count / size_);
      return all;
    }
    TORCH_CHECK_VALUE(
        splits.size() == static_cast<size_t>(size_) && std::accumulate(splits.begin(), splits.end(), int64_t{0}) == rows,
        "unisono: all_to_all_single: the ", which, " has ", rows, " rows; its splits are ", splits);
    for (const auto split : splits) all.push_back(rows == 0 ? 0 : split * (moved(tensor).count / rows));
    return all;
  };
  const auto sent = counts(input_splits, from, "input"), received = counts(output_splits, to, "output");
  call.kept = {from, to};
  return run(std::move(call), [&](Group& g, const CallOptions& o) {
    return g.all_to_all_async(moved(from), moved_into(to), sent, received, o);
  });
}

WorkPointer UnisonoBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  TORCH_CHECK_VALUE(!inputs.empty(), "unisono: all_to_all takes one tensor per rank");
  check_list(inputs, inputs.front(), size_, "all_to_all"), check_list(outputs, inputs.front(), size_, "all_to_all");
  Call call{.type = OpType::ALLTOALL,
            .title = "unisono:all_to_all",
            .async = options.asyncOp,
            .timeout = options.timeout,
            .inputs = inputs,
            .outputs = outputs};
  const auto to = flat_output(outputs, "all_to_all", call.copies), from = flat_input(inputs);
  const auto sent = sizes_of(inputs), received = sizes_of(outputs);
  call.kept = {from, to};
  return run(std::move(call), [&](Group& g, const CallOptions& o) {
    return g.all_to_all_async(moved(from), moved_into(to), sent, received, o);
  });
}

// The ranks have different indices. So the indices and values of all ranks are gathered, and every rank adds them up in the
// order of the ranks. This runs on the caller's thread, because the ranks must first exchange sizes.
WorkPointer UnisonoBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK_VALUE(tensors.size() == 1 && tensors.front().layout() == at::kSparse && tensors.front().device().is_cpu(),
                    "unisono: allreduce_sparse takes one sparse COO tensor on the CPU");
  TORCH_CHECK_VALUE(static_cast<c10d::ReduceOp::RedOpType>(options.reduceOp) == c10d::ReduceOp::SUM,
                    "unisono: sparse tensors are summed only");
  auto& tensor = tensors.front();
  Call call{.type = OpType::_ALLREDUCE_SPARSE,
            .title = "unisono:sparse_all_reduce",
            .timeout = options.timeout,
            .inputs = tensors,
            .outputs = tensors};
  const auto own = tensor.detach().coalesce();
  const auto indices = own.indices().contiguous(), values = own.values().contiguous();
  auto group = checked_group().polling();
  const auto gather = [&](const at::Tensor& mine, const at::Tensor& all, const std::vector<size_t>& counts) {
    WorkSetup setup{.rank = rank_, .type = call.type, .kept = {mine, all}, .pool = pool_, .listener = shared_};
    const auto with = call_options(options.timeout, call.type);
    const auto outcome = std::make_shared<Outcome>(
        std::move(setup), std::vector{group.all_gather_async(moved(mine), moved_into(all), counts, with)});
    wait_for(outcome);
    if (const auto error = outcome->error(); error != nullptr) std::rethrow_exception(error);
  };
  const auto shape =
      at::tensor({own._nnz(), static_cast<int64_t>(own.sparse_dim()), static_cast<int64_t>(own.dense_dim()), own.numel()});
  const auto shapes = at::empty({size_, 4}, at::kLong);
  gather(shape, shapes, {});
  std::vector<size_t> index_counts, value_counts;
  int64_t entries = 0;
  const bool typed = moved(at::empty({1}, values.options())).count == 1;  // false: the elements are sent as plain bytes
  const auto per_entry =
      c10::multiply_integers(values.sizes().slice(1)) * (typed ? 1 : static_cast<int64_t>(values.element_size()));
  for (int rank = 0; rank < size_; ++rank) {
    const auto row = shapes[rank];
    TORCH_CHECK_VALUE(row.narrow(0, 1, 3).equal(shape.narrow(0, 1, 3)), "unisono: allreduce_sparse: rank ", rank,
                      " has another shape");
    const auto count = row[0].item<int64_t>();
    entries += count;
    index_counts.push_back(count * own.sparse_dim());
    value_counts.push_back(count * per_entry);
  }
  auto value_sizes = values.sizes().vec();
  value_sizes[0] = entries;
  const auto all_indices = at::empty({entries, own.sparse_dim()}, at::kLong),
             all_values = at::empty(value_sizes, values.options());
  gather(indices.t().contiguous(), all_indices, index_counts);
  gather(values, all_values, value_counts);
  const at::NoGradGuard no_grad;
  tensor.copy_(at::sparse_coo_tensor(all_indices.t(), all_values, own.sizes()).coalesce());
  return c10::make_intrusive<TorchWork>(setup_of(std::move(call)), Result<Report>(last_report()));
}

}  // namespace unisono::torch_backend

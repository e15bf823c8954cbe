// Converts torch tensors to the engine's form: dense memory of one element type.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <optional>
#include <vector>

#include "unisono/tensor.h"

namespace unisono::torch_backend {

// Elements that are only moved may have any type; types unknown to the engine are sent as bytes.
ConstTensor moved(const at::Tensor& dense);
Tensor moved_into(const at::Tensor& dense);

// How elements are reduced: complex ones as pairs, bool as bits. An error names the type and the operation.
struct Reduction {
  at::Tensor memory;  // dense; a view of the tensor, or a copy
  Tensor tensor;
  ReduceOp op = ReduceOp::sum;
};
Reduction reduction_of(const at::Tensor& dense, const c10d::ReduceOp& op);

// The tensor itself if its memory is dense and in order; otherwise a copy.
at::Tensor dense_input(const at::Tensor& tensor);
// Destination of a result: the tensor itself, or memory that `copies` later copies back to it.
at::Tensor dense_output(const at::Tensor& tensor, bool keep_values, std::vector<std::function<void()>>& copies);

void check_cpu(const at::Tensor& tensor, const char* what);
void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* what);

// Lists of tensors, one per rank.
bool lie_in_a_row(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizes_of(const std::vector<at::Tensor>& tensors);
std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors);
at::Tensor flat_input(const std::vector<at::Tensor>& tensors);
at::Tensor flat_output(const std::vector<at::Tensor>& tensors, std::vector<std::function<void()>>& copies);
void check_list(const std::vector<at::Tensor>& tensors, const at::Tensor& like, size_t count, const char* what);
at::Tensor& only(std::vector<at::Tensor>& tensors, const char* what);

}  // namespace unisono::torch_backend

// Converts torch tensors to the form that the engine needs: dense memory with elements of one type.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <functional>
#include <optional>
#include <vector>

#include "unisono/tensor.h"

namespace unisono::torch_backend {

// For tensors whose elements are only moved, and so may have any type. If the engine does not know the type, the elements are
// sent as bytes.
ConstTensor moved(const at::Tensor& dense);
Tensor moved_into(const at::Tensor& dense);

// The memory and the operation of a reduction. Complex elements are reduced as pairs, and bool elements as bits. If the type
// does not support the operation, the error message names both.
struct Reduction {
  at::Tensor memory;  // dense memory: either a view of the tensor, or a copy
  Tensor tensor;
  ReduceOp op = ReduceOp::sum;
};
Reduction reduction_of(const at::Tensor& dense, const c10d::ReduceOp& op);

// Returns the tensor itself if its memory is dense and in order. Otherwise returns a copy.
at::Tensor dense_input(const at::Tensor& tensor);
// Returns memory for a result. If the tensor is contiguous, this is the tensor itself. Otherwise it is new memory, and a
// function is appended to `copies` that later copies the new memory to the tensor. Throws what check_output() throws.
at::Tensor dense_output(const at::Tensor& tensor, bool keep_values, const char* what,
                        std::vector<std::function<void()>>& copies);
// Throws ValueError if several elements of the tensor are the same memory, as in an expanded tensor, because such a tensor
// cannot hold a result. Call it before anything is exchanged.
void check_output(const at::Tensor& tensor, const char* what);

// Throws ValueError if two of these outputs of one call share memory, because one result would then overwrite the other. Call
// it before anything is exchanged. Like torch, it does not find every overlap of tensors with gaps.
struct Sharing {
  size_t per_rank = 0;      // if not zero, each rank has so many of the outputs, and the message counts them by rank
  bool same_views = false;  // true: equal views get equal results, so they may share memory
};
void check_disjoint(const std::vector<at::Tensor>& outputs, const char* what, Sharing allowed = {});

void check_cpu(const at::Tensor& tensor, const char* what);
void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* what);

// Functions for lists that hold one tensor per rank; see torch_tensors.cc.
bool are_contiguous(const std::vector<at::Tensor>& tensors);
std::vector<size_t> sizes_of(const std::vector<at::Tensor>& tensors);
std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors);
at::Tensor flat_input(const std::vector<at::Tensor>& tensors);
at::Tensor flat_output(const std::vector<at::Tensor>& tensors, const char* what, std::vector<std::function<void()>>& copies);
void check_list(const std::vector<at::Tensor>& tensors, const at::Tensor& like, size_t count, const char* what);
at::Tensor& only(std::vector<at::Tensor>& tensors, const char* what);

}  // namespace unisono::torch_backend

#include "torch_tensors.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>

namespace unisono::torch_backend {
namespace {

std::optional<DType> dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat: return DType::f32;
    case at::kDouble: return DType::f64;
    case at::kHalf: return DType::f16;
    case at::kBFloat16: return DType::bf16;
    case at::kChar: return DType::i8;
    case at::kShort: return DType::i16;
    case at::kInt: return DType::i32;
    case at::kLong: return DType::i64;
    case at::kByte: return DType::u8;
    case at::kUInt16: return DType::u16;
    case at::kUInt32: return DType::u32;
    case at::kUInt64: return DType::u64;
    default: return std::nullopt;
  }
}

// Returns the bit operation that has the same effect as the reduction `op` if all elements are zeros and ones.
unisono::ReduceOp op_of_bool(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::MAX:
    case c10d::ReduceOp::BOR: return unisono::ReduceOp::bor;
    case c10d::ReduceOp::PRODUCT:
    case c10d::ReduceOp::MIN:
    case c10d::ReduceOp::BAND: return unisono::ReduceOp::band;
    case c10d::ReduceOp::BXOR: return unisono::ReduceOp::bxor;
    default: TORCH_CHECK_VALUE(false, "unisono: bool tensors have no such reduction");
  }
}

unisono::ReduceOp op_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM: return unisono::ReduceOp::sum;
    case c10d::ReduceOp::AVG: return unisono::ReduceOp::avg;
    case c10d::ReduceOp::PRODUCT: return unisono::ReduceOp::prod;
    case c10d::ReduceOp::MIN: return unisono::ReduceOp::min;
    case c10d::ReduceOp::MAX: return unisono::ReduceOp::max;
    case c10d::ReduceOp::BAND: return unisono::ReduceOp::band;
    case c10d::ReduceOp::BOR: return unisono::ReduceOp::bor;
    case c10d::ReduceOp::BXOR: return unisono::ReduceOp::bxor;
    default: TORCH_CHECK_VALUE(false, "unisono: unknown reduction ", static_cast<int>(op));
  }
}

}  // namespace

ConstTensor moved(const at::Tensor& dense) {
  const auto type = dtype_of(dense.scalar_type());
  if (type) return {dense.data_ptr(), static_cast<size_t>(dense.numel()), *type};
  return {dense.data_ptr(), static_cast<size_t>(dense.numel()) * dense.element_size(), DType::u8};
}

Tensor moved_into(const at::Tensor& dense) {
  const auto read = moved(dense);
  return {dense.data_ptr(), read.count, read.dtype};
}

Reduction reduction_of(const at::Tensor& dense, const c10d::ReduceOp& op) {
  const auto kind = static_cast<c10d::ReduceOp::RedOpType>(op);
  Reduction all{.memory = dense};
  if (dense.scalar_type() == at::kBool) {
    all.tensor = {dense.data_ptr(), static_cast<size_t>(dense.numel()), DType::u8};
    all.op = op_of_bool(kind);
    return all;
  }
  all.op = op_of(kind);
  if (dense.is_complex()) {
    TORCH_CHECK_VALUE(all.op == unisono::ReduceOp::sum || all.op == unisono::ReduceOp::avg,
                      "unisono: complex tensors are summed or averaged only");
    all.memory = at::view_as_real(dense);
  }
  const auto type = dtype_of(all.memory.scalar_type());
  TORCH_CHECK_TYPE(type, "unisono: tensors of ", dense.scalar_type(), " can be moved, but not reduced");
  all.tensor = {all.memory.data_ptr(), static_cast<size_t>(all.memory.numel()), *type};
  if (kind == c10d::ReduceOp::PREMUL_SUM) {
    const auto* factor = dynamic_cast<const c10d::PreMulSumSupplement*>(op.supplement_.get());
    TORCH_CHECK_VALUE(factor != nullptr, "unisono: PREMUL_SUM without a factor");
    if (factor->tensor_factor.defined()) all.memory.mul_(factor->tensor_factor);
    else all.memory.mul_(factor->double_factor);
  }
  return all;
}

at::Tensor dense_input(const at::Tensor& tensor) { return tensor.resolve_conj().resolve_neg().contiguous(); }

void check_output(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "unisono: ", what, ": a tensor of shape ",
                    tensor.sizes(), " and strides ", tensor.strides(),
                    " cannot hold a result, because several of its elements are the same memory, as in an expanded tensor. "
                    "Pass a tensor of its own memory, such as its clone()");
}

namespace {

const std::byte* begin_of(const at::Tensor& tensor) { return static_cast<const std::byte*>(tensor.const_data_ptr()); }

bool are_same_view(const at::Tensor& a, const at::Tensor& b) {
  return begin_of(a) == begin_of(b) && a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

[[noreturn]] void refuse_overlap(size_t a, size_t b, const char* what, size_t per_rank) {
  const auto name = [&](size_t i) {
    return per_rank == 0 ? std::to_string(i) : std::to_string(i % per_rank) + " of rank " + std::to_string(i / per_rank);
  };
  TORCH_CHECK_VALUE(false, "unisono: ", what, ": outputs ", name(std::min(a, b)), " and ", name(std::max(a, b)),
                    " share memory, so one result would overwrite the other. Pass tensors of their own memory, such as clones");
}

}  // namespace

void check_disjoint(const std::vector<at::Tensor>& outputs, const char* what, Sharing allowed) {
  std::vector<size_t> order;  // of the outputs that have memory, by address
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto& output = outputs[i];
    if (output.defined() && output.layout() == at::kStrided && !output.is_meta() && output.numel() > 0) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return begin_of(outputs[i]); });
  const std::byte* end = nullptr;  // the end of the dense output that reaches furthest, so far
  size_t furthest = 0;
  for (size_t k = 0; k < order.size(); ++k) {
    const auto& output = outputs[order[k]];
    const auto* begin = begin_of(output);
    const bool starts_alike = k > 0 && begin == begin_of(outputs[order[k - 1]]);
    if (starts_alike && allowed.same_views && are_same_view(output, outputs[order[k - 1]])) continue;
    if (starts_alike) refuse_overlap(order[k - 1], order[k], what, allowed.per_rank);
    if (begin < end) refuse_overlap(furthest, order[k], what, allowed.per_rank);
    if (!output.is_non_overlapping_and_dense() || begin + output.nbytes() <= end) continue;
    end = begin + output.nbytes();
    furthest = order[k];
  }
}

at::Tensor dense_output(const at::Tensor& tensor, bool keep_values, const char* what,
                        std::vector<std::function<void()>>& copies) {
  check_output(tensor, what);
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  auto dense = keep_values ? dense_input(tensor) : at::empty(tensor.sizes(), tensor.options());
  if (keep_values && dense.is_alias_of(tensor)) dense = dense.clone();
  copies.emplace_back([tensor, dense] {
    const at::NoGradGuard no_grad;
    const_cast<at::Tensor&>(tensor).copy_(dense);
  });
  return dense;
}

void check_cpu(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, "unisono: ", what, " takes dense tensors");
  TORCH_CHECK_TYPE(tensor.device().is_cpu(), "unisono: ", what, " got a tensor on ", tensor.device());
}

void check_same_type(const at::Tensor& a, const at::Tensor& b, const char* what) {
  TORCH_CHECK_TYPE(a.scalar_type() == b.scalar_type(), "unisono: ", what, " got tensors of ", a.scalar_type(), " and of ",
                   b.scalar_type());
}

// Returns true if each tensor is contiguous, and the tensors follow one another in memory without gaps.
bool are_contiguous(const std::vector<at::Tensor>& tensors) {
  auto* next = static_cast<const std::byte*>(tensors.front().data_ptr());
  for (const auto& tensor : tensors) {
    if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg() || tensor.data_ptr() != next) return false;
    next += tensor.nbytes();
  }
  return true;
}

std::vector<size_t> sizes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<size_t> sizes;
  for (const auto& tensor : tensors) sizes.push_back(moved(tensor).count);
  return sizes;
}

// Returns how many elements each tensor has. If all tensors have the same number of elements, the list is empty, because then
// the engine needs no counts.
std::vector<size_t> counts_of(const std::vector<at::Tensor>& tensors) {
  auto sizes = sizes_of(tensors);
  if (std::ranges::all_of(sizes, [&](size_t size) { return size == sizes.front(); })) sizes.clear();
  return sizes;
}

// Returns the values of all tensors in one contiguous tensor. This is a view if the tensors are adjacent in memory. Otherwise,
// it is a copy.
at::Tensor flat_input(const std::vector<at::Tensor>& tensors) {
  if (are_contiguous(tensors)) {
    const auto elements = std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                                          [](int64_t sum, const auto& tensor) { return sum + tensor.numel(); });
    if (tensors.front().storage_offset() + elements <=
        static_cast<int64_t>(tensors.front().storage().nbytes() / tensors.front().element_size()))
      return tensors.front().as_strided({elements}, {1});
  }
  std::vector<at::Tensor> rows;
  for (const auto& tensor : tensors) rows.push_back(dense_input(tensor).reshape({-1}));
  return at::cat(rows);
}

at::Tensor flat_output(const std::vector<at::Tensor>& tensors, const char* what, std::vector<std::function<void()>>& copies) {
  for (const auto& tensor : tensors) check_output(tensor, what);
  const auto elements = std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                                        [](int64_t sum, const auto& tensor) { return sum + tensor.numel(); });
  const bool one_storage = std::ranges::all_of(
      tensors, [&](const auto& tensor) { return tensor.is_alias_of(tensors.front()) || tensor.numel() == 0; });
  if (one_storage && are_contiguous(tensors)) return tensors.front().as_strided({elements}, {1});
  auto flat = at::empty({elements}, tensors.front().options());
  copies.emplace_back([tensors, flat] {
    const at::NoGradGuard no_grad;
    int64_t at = 0;
    for (auto tensor : tensors) {
      tensor.copy_(flat.narrow(0, at, tensor.numel()).view(tensor.sizes()));
      at += tensor.numel();
    }
  });
  return flat;
}

void check_list(const std::vector<at::Tensor>& tensors, const at::Tensor& like, size_t count, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == count, "unisono: ", what, " takes one tensor per rank, ", count, "; ", tensors.size(),
                    " were given");
  for (const auto& tensor : tensors) check_cpu(tensor, what), check_same_type(tensor, like, what);
}

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* what) {
  TORCH_CHECK_VALUE(tensors.size() == 1, "unisono: ", what, " takes one tensor; ", tensors.size(), " were given");
  check_cpu(tensors.front(), what);
  return tensors.front();
}

}  // namespace unisono::torch_backend

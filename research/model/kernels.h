// The arithmetic of the model: matrix products (by Eigen) and all loops over elements and rows.
//
// kernels.cc is compiled once per instruction set and kernels<T>() picks the best one that this machine has, so that one
// binary runs everywhere. Sums have a fixed order that depends on the shape alone: the same input gives the same bits in
// every process on machines of one kind. No kernel starts a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace language_model {

// Rows that start on cache lines keep 512-bit loads whole.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  static constexpr std::align_val_t alignment{64};
  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), alignment)); }
  void deallocate(T* data, size_t) { ::operator delete(data, alignment); }
  friend bool operator==(const CacheLineAllocator&, const CacheLineAllocator&) { return true; }
};
template <typename T>
using Buffer = std::vector<T, CacheLineAllocator<T>>;

// Row-major; row i starts at data + i * stride.
template <typename T>
struct Matrix {
  T* data = nullptr;
  size_t rows = 0;
  size_t columns = 0;
  size_t stride = 0;
};

// out = scale * a b, or out += scale * a b; a or b, not both, may be used transposed.
template <typename T>
struct Product {
  Matrix<const T> a;
  Matrix<const T> b;
  Matrix<T> out;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  T scale = 1;
};

// Root mean square layer norm (Zhang and Sennrich, 2019): out = gain * in / sqrt(mean(in^2) + 1e-5), row by row.
template <typename T>
struct RmsNorm {
  size_t rows = 0;
  size_t columns = 0;
  const T* in = nullptr;
  const T* gain = nullptr;
  T* out = nullptr;
  T* inverse_rms = nullptr;  // one per row, kept for the backward pass
};
template <typename T>
struct RmsNormBackward {
  RmsNorm<T> norm;  // out is not read
  const T* out_gradient = nullptr;
  T* in_gradient = nullptr;    // added to: the residual stream's own gradient is already there
  T* gain_gradient = nullptr;  // added to
};

// Rotary position embedding (Su et al., 2021): the pair (i, i + head_width / 2) of every head is turned by
// position * 10000^(-2i / head_width).
template <typename T>
struct Rotation {
  Matrix<T> heads;  // rows are positions 0, 1, …, context - 1, 0, …; columns are a multiple of head_width
  size_t head_width = 0;
  size_t context = 0;
  const T* cosine = nullptr;  // context × head_width / 2
  const T* sine = nullptr;
  bool inverse = false;  // turn back: the gradient of a rotation
};

// SwiGLU (Shazeer, 2020): out = silu(gate) * up; gate and up are the halves of a row of gate_up.
template <typename T>
struct SwiGlu {
  size_t rows = 0;
  size_t hidden = 0;
  const T* gate_up = nullptr;  // rows × 2 hidden
  T* out = nullptr;            // rows × hidden
};
template <typename T>
struct SwiGluBackward {
  SwiGlu<T> forward;  // out is not read
  const T* out_gradient = nullptr;
  T* gate_up_gradient = nullptr;
};

template <typename T>
struct CrossEntropy {
  Matrix<T> logits;  // becomes its own gradient, times gradient_scale, unless that is 0
  const uint8_t* targets = nullptr;
  T gradient_scale = 0;
};

template <typename T>
struct Kernels {
  const char* name;
  void (*multiply)(const Product<T>&);
  void (*rms_norm)(const RmsNorm<T>&);
  void (*rms_norm_backward)(const RmsNormBackward<T>&);
  void (*rotate)(const Rotation<T>&);
  // Row i holds the scores of query first_row + i; keys after it get probability 0.
  void (*causal_softmax)(Matrix<T> scores, size_t first_row);
  // gradient of the probabilities in, gradient of the scores out.
  void (*causal_softmax_backward)(Matrix<const T> probabilities, Matrix<T> gradient, size_t first_row);
  void (*swiglu)(const SwiGlu<T>&);
  void (*swiglu_backward)(const SwiGluBackward<T>&);
  // The sum over rows of -log softmax(logits)[target], in nats.
  double (*cross_entropy)(const CrossEntropy<T>&);
};

// For float: the best of this machine. For double: plain, for checking gradients.
template <typename T>
const Kernels<T>& kernels();
// Every build that this machine can run, the plainest first.
std::vector<const Kernels<float>*> supported_kernels();

}  // namespace language_model

// The arithmetic of the model: matrix products (computed by Eigen), and all loops over elements and rows.
//
// kernels.cc is compiled once for each instruction set. kernels<T>() returns the best build for this machine, so one binary
// runs everywhere. The order of additions depends only on the shape. Therefore the same input gives the same bits in all
// processes whose machines are of the same kind. No kernel starts a thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace language_model {

// Aligns memory to cache lines, so that no 512-bit load crosses the border between two lines.
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

// A row-major matrix. Row i starts at data + i * stride.
template <typename T>
struct Matrix {
  T* data = nullptr;
  size_t rows = 0;
  size_t columns = 0;
  size_t stride = 0;
};

// Computes out = scale * a b, or out += scale * a b. Either a or b may be transposed, but not both.
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

// Root mean square layer norm (Zhang and Sennrich, 2019). It computes for each row: out = gain * in / sqrt(mean(in^2) + 1e-5).
template <typename T>
struct RmsNorm {
  size_t rows = 0;
  size_t columns = 0;
  const T* in = nullptr;
  const T* gain = nullptr;
  T* out = nullptr;
  T* inverse_rms = nullptr;  // The forward pass stores one value per row here, and the backward pass uses it.
};
template <typename T>
struct RmsNormBackward {
  RmsNorm<T> norm;  // The arguments of the forward pass. norm.out is not read.
  const T* out_gradient = nullptr;
  T* in_gradient = nullptr;  // The kernel adds to these values, because they already have the gradient of the residual stream.
  T* gain_gradient = nullptr;  // The kernel adds to these values, because the gradient of a gain is a sum over the rows.
};

// Rotary position embedding (Su et al., 2021). In every head, the pair of elements (i, i + head_width / 2) is rotated by the
// angle position * 10000^(-2i / head_width).
template <typename T>
struct Rotation {
  Matrix<T> heads;  // Row i has position i % context. The number of columns is a multiple of head_width.
  size_t head_width = 0;
  size_t context = 0;
  const T* cosine = nullptr;  // context × head_width / 2 values
  const T* sine = nullptr;
  bool inverse = false;  // true: rotate backwards, as the backward pass needs it
};

// SwiGLU (Shazeer, 2020). It computes out = silu(gate) * up. A row of gate_up has the gate values, followed by the up values.
template <typename T>
struct SwiGlu {
  size_t rows = 0;
  size_t hidden = 0;
  const T* gate_up = nullptr;  // rows × 2 hidden values
  T* out = nullptr;            // rows × hidden values
};
template <typename T>
struct SwiGluBackward {
  SwiGlu<T> forward;  // The arguments of the forward pass. forward.out is not read.
  const T* out_gradient = nullptr;
  T* gate_up_gradient = nullptr;
};

template <typename T>
struct CrossEntropy {
  // The kernel replaces each logit by its gradient times gradient_scale. If gradient_scale is 0, the logits stay as they are.
  Matrix<T> logits;
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
  // Replaces scores by probabilities. Row i has the scores of query number first_row + i. The keys after that query get
  // probability 0.
  void (*causal_softmax)(Matrix<T> scores, size_t first_row);
  // Before the call, `gradient` has the gradient of the probabilities. The kernel replaces it by the gradient of the scores.
  void (*causal_softmax_backward)(Matrix<const T> probabilities, Matrix<T> gradient, size_t first_row);
  void (*swiglu)(const SwiGlu<T>&);
  void (*swiglu_backward)(const SwiGluBackward<T>&);
  // Returns the sum of -log softmax(logits)[target] over all rows, in nats.
  double (*cross_entropy)(const CrossEntropy<T>&);
};

// For float, returns the best build for this machine. For double, returns the baseline build, which is used to check gradients.
template <typename T>
const Kernels<T>& kernels();
// Returns all builds that this machine can run. The baseline is the first.
std::vector<const Kernels<float>*> supported_kernels();

}  // namespace language_model

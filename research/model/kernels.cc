// The kernels. This file is compiled once for each instruction set (target). The macro LANGUAGE_MODEL_TARGET is the name of the
// target.
//
// All code here is in an anonymous namespace, and each target has its own namespace for Eigen. Without that, the builds for
// different targets could have inline functions of the same name, and the linker would keep only one of these.
#define EIGEN_DONT_PARALLELIZE
#define LANGUAGE_MODEL_JOIN2(a, b) a##b
#define LANGUAGE_MODEL_JOIN(a, b) LANGUAGE_MODEL_JOIN2(a, b)
#define Eigen LANGUAGE_MODEL_JOIN(eigen_, LANGUAGE_MODEL_TARGET)
#include <Eigen/Core>

#include <bit>
#include <cmath>

#include "research/model/kernels.h"

namespace language_model {
namespace {

// A sum is computed in this many lanes (partial sums), even if the machine's vectors have another width. Therefore all targets
// add in the same order.
constexpr size_t lane_count = 16;

template <typename T, typename Combine>
inline T combine_lanes(T* lanes, Combine combine) {
  for (size_t half = lane_count / 2; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lanes[i] = combine(lanes[i], lanes[i + half]);
  }
  return lanes[0];
}

template <typename T, typename Value, typename Combine>
inline T reduce(size_t count, T initial, Value value, Combine combine) {
  alignas(64) T lanes[lane_count];
  for (size_t lane = 0; lane < lane_count; ++lane) lanes[lane] = initial;
  size_t i = 0;
  for (; i + lane_count <= count; i += lane_count) {
    for (size_t lane = 0; lane < lane_count; ++lane) lanes[lane] = combine(lanes[lane], value(i + lane));
  }
  for (size_t lane = 0; i < count; ++i, ++lane) lanes[lane] = combine(lanes[lane], value(i));
  return combine_lanes(lanes, combine);
}

template <typename T, typename Value>
inline T sum_of(size_t count, Value value) {
  return reduce(count, T(0), value, [](T a, T b) { return a + b; });
}

template <typename T, typename Value>
inline T max_of(size_t count, T initial, Value value) {
  return reduce(count, initial, value, [](T a, T b) { return a > b ? a : b; });
}

inline double exponential(double x) { return std::exp(x); }

// Returns e^x. The compiler can vectorize this function, but it cannot vectorize a call of libm.
// x = n ln 2 + r, with |r| <= ln 2 / 2. e^r is computed by its Taylor series up to r^7; the error is below 6e-9.
// Inputs below -87 give about 1e-38, inputs above 88 give about 1.7e38, and NaN gives NaN.
inline float exponential(float x) {
  // If this is added, the nearest integer moves into the low bits of the mantissa.
  constexpr float round_to_integer = 0x1.8p23f;
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * 1.44269504f + round_to_integer;
  const float n = shifted - round_to_integer;
  // ln 2 is the sum of these two constants. The product of n and the first one is exact.
  const float r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const auto exponent = std::bit_cast<uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(series) + exponent);
}

template <typename T>
void multiply(const Product<T>& p) {
  using Storage = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using In = Eigen::Map<const Storage, 0, Eigen::OuterStride<>>;
  using Out = Eigen::Map<Storage, 0, Eigen::OuterStride<>>;
  const auto size = [](size_t n) { return static_cast<Eigen::Index>(n); };
  const In a(p.a.data, size(p.a.rows), size(p.a.columns), Eigen::OuterStride<>(size(p.a.stride)));
  const In b(p.b.data, size(p.b.rows), size(p.b.columns), Eigen::OuterStride<>(size(p.b.stride)));
  Out out(p.out.data, size(p.out.rows), size(p.out.columns), Eigen::OuterStride<>(size(p.out.stride)));
  if (!p.accumulate) out.setZero();
  if (p.transpose_a) {
    out.noalias() += p.scale * (a.transpose() * b);
  } else if (p.transpose_b) {
    out.noalias() += p.scale * (a * b.transpose());
  } else {
    out.noalias() += p.scale * (a * b);
  }
}

template <typename T>
void rms_norm(const RmsNorm<T>& n) {
  for (size_t row = 0; row < n.rows; ++row) {
    const T* __restrict in = n.in + row * n.columns;
    T* __restrict out = n.out + row * n.columns;
    const T* __restrict gain = n.gain;
    const T mean_square = sum_of<T>(n.columns, [&](size_t i) { return in[i] * in[i]; }) / static_cast<T>(n.columns);
    const T inverse = T(1) / std::sqrt(mean_square + T(1e-5));
    n.inverse_rms[row] = inverse;
    for (size_t i = 0; i < n.columns; ++i) out[i] = gain[i] * (in[i] * inverse);
  }
}

// With s = 1 / rms and d = gain * out_gradient: in_gradient = s d - in s^3 mean(d in).
template <typename T>
void rms_norm_backward(const RmsNormBackward<T>& b) {
  const size_t columns = b.norm.columns;
  T* __restrict gain_gradient = b.gain_gradient;
  const T* __restrict gain = b.norm.gain;
  for (size_t row = 0; row < b.norm.rows; ++row) {
    const T* __restrict in = b.norm.in + row * columns;
    const T* __restrict out_gradient = b.out_gradient + row * columns;
    T* __restrict in_gradient = b.in_gradient + row * columns;
    const T inverse = b.norm.inverse_rms[row];
    const T dot = sum_of<T>(columns, [&](size_t i) { return gain[i] * out_gradient[i] * in[i]; });
    const T factor = dot * inverse * inverse * inverse / static_cast<T>(columns);
    for (size_t i = 0; i < columns; ++i) {
      gain_gradient[i] += out_gradient[i] * (in[i] * inverse);
      in_gradient[i] += inverse * gain[i] * out_gradient[i] - factor * in[i];
    }
  }
}

template <typename T>
void rotate(const Rotation<T>& r) {
  const size_t half = r.head_width / 2;
  const T sign = r.inverse ? T(-1) : T(1);
  for (size_t row = 0; row < r.heads.rows; ++row) {
    const T* __restrict cosine = r.cosine + (row % r.context) * half;
    const T* __restrict sine = r.sine + (row % r.context) * half;
    for (size_t head = 0; head < r.heads.columns; head += r.head_width) {
      T* __restrict low = r.heads.data + row * r.heads.stride + head;
      T* __restrict high = low + half;
      for (size_t i = 0; i < half; ++i) {
        const T x = low[i];
        const T y = high[i];
        low[i] = x * cosine[i] - sign * y * sine[i];
        high[i] = y * cosine[i] + sign * x * sine[i];
      }
    }
  }
}

template <typename T>
void causal_softmax(Matrix<T> scores, size_t first_row) {
  for (size_t row = 0; row < scores.rows; ++row) {
    T* __restrict values = scores.data + row * scores.stride;
    const size_t count = first_row + row + 1;
    const T largest = max_of(count, values[0], [&](size_t i) { return values[i]; });
    for (size_t i = 0; i < count; ++i) values[i] = exponential(values[i] - largest);
    const T inverse = T(1) / sum_of<T>(count, [&](size_t i) { return values[i]; });
    for (size_t i = 0; i < count; ++i) values[i] *= inverse;
    for (size_t i = count; i < scores.columns; ++i) values[i] = T(0);
  }
}

template <typename T>
void causal_softmax_backward(Matrix<const T> probabilities, Matrix<T> gradient, size_t first_row) {
  for (size_t row = 0; row < gradient.rows; ++row) {
    const T* __restrict p = probabilities.data + row * probabilities.stride;
    T* __restrict g = gradient.data + row * gradient.stride;
    const size_t count = first_row + row + 1;
    const T dot = sum_of<T>(count, [&](size_t i) { return p[i] * g[i]; });
    for (size_t i = 0; i < count; ++i) g[i] = p[i] * (g[i] - dot);
    for (size_t i = count; i < gradient.columns; ++i) g[i] = T(0);
  }
}

template <typename T>
void swiglu(const SwiGlu<T>& s) {
  for (size_t row = 0; row < s.rows; ++row) {
    const T* __restrict gate = s.gate_up + row * 2 * s.hidden;
    const T* __restrict up = gate + s.hidden;
    T* __restrict out = s.out + row * s.hidden;
    for (size_t i = 0; i < s.hidden; ++i) out[i] = gate[i] / (T(1) + exponential(-gate[i])) * up[i];
  }
}

// silu'(x) = sigmoid(x) (1 + x (1 - sigmoid(x))).
template <typename T>
void swiglu_backward(const SwiGluBackward<T>& b) {
  const size_t hidden = b.forward.hidden;
  for (size_t row = 0; row < b.forward.rows; ++row) {
    const T* __restrict gate = b.forward.gate_up + row * 2 * hidden;
    const T* __restrict up = gate + hidden;
    const T* __restrict out_gradient = b.out_gradient + row * hidden;
    T* __restrict gate_gradient = b.gate_up_gradient + row * 2 * hidden;
    T* __restrict up_gradient = gate_gradient + hidden;
    for (size_t i = 0; i < hidden; ++i) {
      const T sigmoid = T(1) / (T(1) + exponential(-gate[i]));
      up_gradient[i] = out_gradient[i] * gate[i] * sigmoid;
      gate_gradient[i] = out_gradient[i] * up[i] * sigmoid * (T(1) + gate[i] * (T(1) - sigmoid));
    }
  }
}

template <typename T>
double cross_entropy(const CrossEntropy<T>& c) {
  double loss = 0;
  for (size_t row = 0; row < c.logits.rows; ++row) {
    T* __restrict logits = c.logits.data + row * c.logits.stride;
    const size_t count = c.logits.columns;
    const size_t target = c.targets[row];
    const T largest = max_of(count, logits[0], [&](size_t i) { return logits[i]; });
    const T target_logit = logits[target];
    const T total = sum_of<T>(count, [&](size_t i) { return exponential(logits[i] - largest); });
    loss += std::log(static_cast<double>(total)) - static_cast<double>(target_logit - largest);
    if (c.gradient_scale == T(0)) continue;
    const T factor = c.gradient_scale / total;
    for (size_t i = 0; i < count; ++i) logits[i] = exponential(logits[i] - largest) * factor;
    logits[target] -= c.gradient_scale;
  }
  return loss;
}

template <typename T>
constexpr Kernels<T> make_kernels(const char* name) {
  return {.name = name,
          .multiply = multiply<T>,
          .rms_norm = rms_norm<T>,
          .rms_norm_backward = rms_norm_backward<T>,
          .rotate = rotate<T>,
          .causal_softmax = causal_softmax<T>,
          .causal_softmax_backward = causal_softmax_backward<T>,
          .swiglu = swiglu<T>,
          .swiglu_backward = swiglu_backward<T>,
          .cross_entropy = cross_entropy<T>};
}

}  // namespace

#define LANGUAGE_MODEL_TEXT2(a) #a
#define LANGUAGE_MODEL_TEXT(a) LANGUAGE_MODEL_TEXT2(a)

// The names are kernels_float_baseline, kernels_float_x86_64_v3, …
extern const Kernels<float> LANGUAGE_MODEL_JOIN(kernels_float_, LANGUAGE_MODEL_TARGET);
const Kernels<float> LANGUAGE_MODEL_JOIN(kernels_float_, LANGUAGE_MODEL_TARGET) =
    make_kernels<float>(LANGUAGE_MODEL_TEXT(LANGUAGE_MODEL_TARGET));

#ifdef LANGUAGE_MODEL_WITH_DOUBLE
extern const Kernels<double> kernels_double_baseline;
const Kernels<double> kernels_double_baseline = make_kernels<double>("baseline");
#endif

}  // namespace language_model

// The scalar reference. It defines which bits the SIMD kernels must produce. It processes one element at a time, and uses
// integer arithmetic for every rounding.
#include <bit>
#include <cmath>
#include <concepts>
#include <cstring>
#include <limits>
#include <type_traits>

#include "base/check.h"
#include "kernels/dispatch.h"
#include "kernels/sketch.h"

namespace unisono::kernels {
namespace {

float widen(bfloat16 value) {
  const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return std::bit_cast<float>(nan ? bits | 0x00400000u : bits);
}

float widen(float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13) | (mantissa != 0 ? 0x00400000u : 0u));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // A subnormal f16 is mantissa * 2^-24. This is a normal fp32 number, so the leading 1 bit of the mantissa becomes the
  // implicit bit.
  const uint32_t top = static_cast<uint32_t>(std::bit_width(mantissa)) - 1;
  return std::bit_cast<float>(sign | ((top + 103) << 23) | ((mantissa << (23 - top)) & 0x007FFFFFu));
}

// Returns value / 2^shift, rounded to nearest, ties to even. `shift` must be 1 to 31.
uint32_t shift_rounded(uint32_t value, uint32_t shift) {
  const uint32_t kept = value >> shift;
  const uint32_t rest = value & ((1u << shift) - 1);
  const uint32_t half = 1u << (shift - 1);
  return kept + ((rest > half || (rest == half && (kept & 1u) != 0)) ? 1u : 0u);
}

// A carry out of the mantissa raises the exponent, possibly to infinity. This gives the correctly rounded result.
void narrow(float value, bfloat16& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  out.bits = static_cast<uint16_t>(nan ? (bits >> 16) | 0x0040u : shift_rounded(bits, 16));
}

void narrow(float value, float16& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const uint32_t exponent = magnitude >> 23;
  uint32_t result = 0;
  if (magnitude > 0x7F800000u) {
    result = 0x7E00u | ((magnitude >> 13) & 0x3FFu);
  } else if (magnitude >= 0x47800000u) {  // from 2^16 on, and infinity
    result = 0x7C00u;
  } else if (exponent >= 113) {  // from 2^-14 on: normal
    result = shift_rounded(magnitude - (112u << 23), 13);
  } else if (exponent >= 102) {  // from 2^-25 on: subnormal, in units of 2^-24
    result = shift_rounded((magnitude & 0x007FFFFFu) | 0x00800000u, 126 - exponent);
  }
  out.bits = static_cast<uint16_t>(sign | result);
}

float widen(float value) { return value; }
double widen(double value) { return value; }
template <std::integral T>
T widen(T value) {
  return value;
}

template <typename T>
void narrow(T value, T& out) {
  out = value;
}

template <typename T>
T combine(ReduceOp op, T left, T right) {
  if constexpr (std::is_floating_point_v<T>) {
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return left + right;
      case ReduceOp::prod: return left * right;
      case ReduceOp::min: return std::isnan(right) || right < left ? right : left;
      case ReduceOp::max: return std::isnan(right) || right > left ? right : left;
      default: UNISONO_CHECK(!"bit operations take integers only");
    }
  } else {
    // The function computes with 64 unsigned bits. So no signed type can overflow, and the low bits are the wrapped result.
    const auto a = static_cast<uint64_t>(left), b = static_cast<uint64_t>(right);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: return static_cast<T>(a + b);
      case ReduceOp::prod: return static_cast<T>(a * b);
      case ReduceOp::min: return right < left ? right : left;
      case ReduceOp::max: return right > left ? right : left;
      case ReduceOp::band: return static_cast<T>(a & b);
      case ReduceOp::bor: return static_cast<T>(a | b);
      case ReduceOp::bxor: return static_cast<T>(a ^ b);
    }
  }
  return left;
}

template <typename T>
T divide(T value, uint32_t divisor) {
  if constexpr (std::is_floating_point_v<T>) return value / static_cast<T>(divisor);
  else if constexpr (std::is_signed_v<T>) return static_cast<T>(static_cast<int64_t>(value) / static_cast<int64_t>(divisor));
  else return static_cast<T>(static_cast<uint64_t>(value) / divisor);
}

template <typename T>
T element(const void* source, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const std::byte*>(source) + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void set_element(void* destination, size_t index, T value) {
  std::memcpy(static_cast<std::byte*>(destination) + index * sizeof(T), &value, sizeof(T));
}

template <typename T>
void reduce_elements(const Reduction& task) {
  for (size_t i = 0; i < task.count; ++i) {
    auto folded = widen(element<T>(task.sources[0], i));
    for (const void* source : task.sources.subspan(1)) folded = combine(task.op, folded, widen(element<T>(source, i)));
    if (task.divisor > 1) folded = divide(folded, task.divisor);
    if constexpr (std::is_floating_point_v<decltype(folded)>) {
      if (std::isnan(folded)) folded = std::numeric_limits<decltype(folded)>::quiet_NaN();
    }
    T result;
    narrow(folded, result);
    set_element(task.destination, i, result);
    if (task.copy != nullptr) set_element(task.copy, i, result);
  }
}

}  // namespace

void reduce_reference(const Reduction& task) {
  if (task.count == 0) return;
  UNISONO_CHECK(!task.sources.empty());
  UNISONO_CHECK(!is_floating(task.dtype) || task.op < ReduceOp::band);
  switch (task.dtype) {
    case DType::f32: return reduce_elements<float>(task);
    case DType::f64: return reduce_elements<double>(task);
    case DType::f16: return reduce_elements<float16>(task);
    case DType::bf16: return reduce_elements<bfloat16>(task);
    case DType::i8: return reduce_elements<int8_t>(task);
    case DType::i16: return reduce_elements<int16_t>(task);
    case DType::i32: return reduce_elements<int32_t>(task);
    case DType::i64: return reduce_elements<int64_t>(task);
    case DType::u8: return reduce_elements<uint8_t>(task);
    case DType::u16: return reduce_elements<uint16_t>(task);
    case DType::u32: return reduce_elements<uint32_t>(task);
    case DType::u64: return reduce_elements<uint64_t>(task);
  }
}

void convert_reference(DType to, void* destination, DType from, const void* source, size_t count) {
  const auto each = [&](auto from_type, auto to_type) {
    for (size_t i = 0; i < count; ++i) {
      narrow(widen(element<decltype(from_type)>(source, i)), to_type);
      set_element(destination, i, to_type);
    }
  };
  if (to == DType::f32 && from == DType::bf16) return each(bfloat16{}, float{});
  if (to == DType::f32 && from == DType::f16) return each(float16{}, float{});
  if (to == DType::bf16 && from == DType::f32) return each(float{}, bfloat16{});
  if (to == DType::f16 && from == DType::f32) return each(float{}, float16{});
  UNISONO_CHECK(!"no conversion between these types");
}

double sketch_reference(const SketchTask& task) {
  const size_t stride = task.stride != 0 ? task.stride : task.columns;
  double squares = 0;
  for (size_t i = 0; i < task.rows; ++i) {
    float* const row = task.values + i * task.columns;
    const float* const left = task.residual == nullptr                          ? nullptr
                              : task.cleared != nullptr && task.cleared[i] != 0 ? task.zeros
                                                                                : task.residual + i * task.columns;
    for (size_t c = 0; left != nullptr && !task.difference && c < task.columns; ++c) row[c] += left[c];
    for (uint32_t j = 0; j < task.rank; ++j) {
      double sum = 0;
      for (size_t c = 0; c < task.columns; ++c)
        sum += double{left != nullptr && task.difference ? row[c] - left[c] : row[c]} * task.directions[j * stride + c];
      task.sketch[i * task.rank + j] = static_cast<float>(task.scale * sum);
    }
    for (size_t c = 0; task.moved != nullptr && c < task.columns; ++c) {
      squares += left == nullptr ? 0 : double{left[c]} * left[c];
      task.moved[i * task.columns + c] = row[c];
      row[c] = 0;
    }
  }
  return squares;
}

}  // namespace unisono::kernels

// Views of tensors, each with contiguous elements of one type. They do not own the memory, have no shape, and need no
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace unisono {

// Floating-point values of 16 bits, which are stored as bits. Arithmetic is done in fp32, and the result is rounded once.
struct bfloat16 {
  uint16_t bits = 0;
};
struct float16 {
  uint16_t bits = 0;
};

// The numbers are part of the wire format, so they must not change.
enum class DType : uint8_t {
  f32 = 0,
  f64 = 1,
  f16 = 2,
  bf16 = 3,
  i8 = 4,
  i16 = 5,
  i32 = 6,
  i64 = 7,
  u8 = 8,
  u16 = 9,
  u32 = 10,
  u64 = 11
};
inline constexpr int dtype_count = 12;

// avg is the sum divided by the world size. For integers, the sum wraps around, and the division rounds towards zero. Bit
// operations (band, bor, bxor) need integers. min and max return NaN if any input is NaN. The numbers are part of the wire
// format.
enum class ReduceOp : uint8_t { sum = 0, avg = 1, min = 2, max = 3, prod = 4, band = 5, bor = 6, bxor = 7 };
inline constexpr int reduce_op_count = 8;

constexpr size_t element_bytes(DType type) {
  switch (type) {
    case DType::i8:
    case DType::u8: return 1;
    case DType::f16:
    case DType::bf16:
    case DType::i16:
    case DType::u16: return 2;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
  }
  return 0;
}

constexpr bool is_floating(DType type) { return static_cast<uint8_t>(type) <= 3; }

constexpr const char* name(DType type) {
  constexpr const char* names[] = {"f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"};
  return static_cast<uint8_t>(type) < dtype_count ? names[static_cast<uint8_t>(type)] : "unknown";
}

constexpr const char* name(ReduceOp op) {
  constexpr const char* names[] = {"sum", "avg", "min", "max", "prod", "band", "bor", "bxor"};
  return static_cast<uint8_t>(op) < reduce_op_count ? names[static_cast<uint8_t>(op)] : "unknown";
}

template <typename T>
constexpr DType dtype_of() {
  using U = std::remove_cv_t<T>;
  if constexpr (std::is_same_v<U, float>) return DType::f32;
  else if constexpr (std::is_same_v<U, double>) return DType::f64;
  else if constexpr (std::is_same_v<U, float16>) return DType::f16;
  else if constexpr (std::is_same_v<U, bfloat16>) return DType::bf16;
  else {
    static_assert(std::is_integral_v<U> && sizeof(U) <= 8, "no Unisono element type for T");
    constexpr int shift = sizeof(U) == 1 ? 0 : sizeof(U) == 2 ? 1 : sizeof(U) == 4 ? 2 : 3;
    return static_cast<DType>((std::is_signed_v<U> ? 4 : 8) + shift);
  }
}

// The elements that an operation only reads. data needs no alignment. It may be null if count is 0.
struct ConstTensor {
  const void* data = nullptr;
  size_t count = 0;  // number of elements
  DType dtype = DType::f32;

  ConstTensor() = default;
  ConstTensor(const void* d, size_t n, DType t) : data(d), count(n), dtype(t) {}
  template <typename T>
  ConstTensor(std::span<const T> s) : data(s.data()), count(s.size()), dtype(dtype_of<T>()) {}
  size_t bytes() const { return count * element_bytes(dtype); }
};

// The elements that an operation writes, or that it both reads and writes.
struct Tensor {
  void* data = nullptr;
  size_t count = 0;  // number of elements
  DType dtype = DType::f32;

  Tensor() = default;
  Tensor(void* d, size_t n, DType t) : data(d), count(n), dtype(t) {}
  template <typename T>
  requires(!std::is_const_v<T>) Tensor(std::span<T> s) : data(s.data()), count(s.size()), dtype(dtype_of<T>()) {}
  size_t bytes() const { return count * element_bytes(dtype); }
  operator ConstTensor() const { return {data, count, dtype}; }
};

}  // namespace unisono

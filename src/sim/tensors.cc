#include "sim/tensors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "kernels/dispatch.h"

namespace unisono::sim {
namespace {

constexpr std::byte guard_byte{0xA7};
constexpr size_t batch = 512;

// A large run makes hundreds of millions of values, so one random word gives eight of them.
int small_number(uint64_t seed, size_t i) { return static_cast<int>(mix64(seed ^ (i / 8)) >> (i % 8 * 8) & 15) - 8; }

double product_number(uint64_t seed, size_t i) {
  constexpr double factors[] = {1, -1, 2, -2, 1, -1, 1, 0.5};
  return factors[mix64(seed ^ i) & 7];
}

double rough_number(uint64_t seed, size_t i, bool product) {
  Random random(seed ^ mix64(i));
  const double unit = random.unit() * 2 - 1;
  return product ? unit + 1.5 : std::ldexp(unit, static_cast<int>(random.below(12)) - 6);
}

double special_number(uint64_t seed, size_t i) {
  constexpr double specials[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(),
                                 0.0,
                                 -0.0,
                                 1e-40,
                                 6e-8,
                                 65504};
  Random random(seed ^ mix64(i));
  return random.chance(0.2) ? specials[random.below(std::size(specials))] : rough_number(seed, i, false);
}

double number(const Fill& fill, size_t i) {
  switch (fill.values) {
    case Values::exact: return fill.product ? product_number(fill.seed, i) : small_number(fill.seed, i);
    case Values::rough: return rough_number(fill.seed, i, fill.product);
    case Values::special: return special_number(fill.seed, i);
  }
  return 0;
}

// Where possible, makes the eight values of one random word together.
template <typename T>
void fill_small(uint64_t seed, size_t first, size_t count, T* values) {
  size_t k = 0;
  for (; k < count && (first + k) % 8 != 0; ++k) values[k] = static_cast<T>(small_number(seed, first + k));
  for (; k + 8 <= count; k += 8) {
    const auto word = mix64(seed ^ ((first + k) / 8));
    for (size_t j = 0; j < 8; ++j) values[k + j] = static_cast<T>(static_cast<int>(word >> (j * 8) & 15) - 8);
  }
  for (; k < count; ++k) values[k] = static_cast<T>(small_number(seed, first + k));
}

template <typename T>
void fill_floats(const Fill& fill, size_t first, size_t count, std::byte* data) {
  T values[batch];
  for (size_t i = 0; i < count; i += batch) {
    const auto n = std::min(batch, count - i);
    if (fill.values == Values::exact && !fill.product) {
      fill_small(fill.seed, first + i, n, values);
    } else {
      for (size_t k = 0; k < n; ++k) values[k] = static_cast<T>(number(fill, first + i + k));
    }
    std::memcpy(data + i * sizeof(T), values, n * sizeof(T));
  }
}

void fill_halves(const Fill& fill, size_t first, size_t count, std::byte* data) {
  float values[batch];
  for (size_t i = 0; i < count; i += batch) {
    const auto n = std::min(batch, count - i);
    for (size_t k = 0; k < n; ++k) values[k] = static_cast<float>(number(fill, first + i + k));
    kernels::convert_reference(fill.dtype, data + i * 2, DType::f32, values, n);
  }
}

}  // namespace

void fill_values(const Fill& fill, size_t first, size_t count, std::byte* data) {
  switch (fill.dtype) {
    case DType::f32: return fill_floats<float>(fill, first, count, data);
    case DType::f64: return fill_floats<double>(fill, first, count, data);
    case DType::f16:
    case DType::bf16: return fill_halves(fill, first, count, data);
    default: break;
  }
  const auto size = element_bytes(fill.dtype);
  for (size_t i = 0; i < count; ++i) {
    const auto bits = mix64(fill.seed ^ mix64(first + i));
    std::memcpy(data + i * size, &bits, size);
  }
}

double as_double(DType dtype, const std::byte* element) {
  const auto read = [&]<typename T>(T value) {
    std::memcpy(&value, element, sizeof value);
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::f32: return read(float{});
    case DType::f64: return read(double{});
    case DType::f16:
    case DType::bf16: {
      uint16_t half = 0;
      float value = 0;
      std::memcpy(&half, element, sizeof half);
      kernels::convert_reference(DType::f32, &value, dtype, &half, 1);
      return value;
    }
    case DType::i8: return read(int8_t{});
    case DType::i16: return read(int16_t{});
    case DType::i32: return read(int32_t{});
    case DType::i64: return read(int64_t{});
    case DType::u8: return read(uint8_t{});
    case DType::u16: return read(uint16_t{});
    case DType::u32: return read(uint32_t{});
    case DType::u64: return read(uint64_t{});
  }
  return 0;
}

GuardedBuffer::GuardedBuffer(size_t bytes, size_t shift)
    : memory_(bytes + shift + 2 * guard_bytes, guard_byte), bytes_(bytes), shift_(shift) {}

bool GuardedBuffer::guards_intact() const {
  const auto whole = [](std::span<const std::byte> s) {
    return std::all_of(s.begin(), s.end(), [](std::byte b) { return b == guard_byte; });
  };
  const std::span<const std::byte> memory(memory_);
  const auto begin = std::min(memory.size(), guard_bytes + shift_);
  return whole(memory.first(begin)) && whole(memory.subspan(std::min(memory.size(), begin + bytes_)));
}

}  // namespace unisono::sim

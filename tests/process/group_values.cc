#include "group_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "base/concat.h"
#include "base/random.h"

namespace unisono::testing {
namespace {

constexpr size_t guard_bytes = 64;
constexpr std::byte guard_value{0xA5};

// Copies the first value_period elements again and again, until there are `count` elements.
void repeat(std::byte* out, size_t count, size_t size) {
  for (size_t done = value_period; done < count;) {
    const auto more = std::min(done, count - done);  // These are whole periods, and twice as many each time.
    std::memcpy(out + done * size, out, more * size);
    done += more;
  }
}

// Rounds a value to `bits` bits of mantissa; ties go to the even one. The result is right only if it is a normal number of the
// small type.
float rounded(float value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  const float quantum = std::ldexp(1.0f, std::ilogb(value) - bits);
  return std::nearbyint(value / quantum) * quantum;
}

// Returns the bits of a small float: sign, biased exponent, mantissa. The value must not be out of range.
uint16_t small_float_bits(float value, int mantissa_bits, int bias) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (value == 0) return sign;
  const float exact = std::fabs(rounded(value, mantissa_bits));
  const int exponent = std::ilogb(exact);
  const auto mantissa = static_cast<uint16_t>((std::ldexp(exact, -exponent) - 1.0f) * std::ldexp(1.0f, mantissa_bits));
  return static_cast<uint16_t>(sign | (exponent + bias) << mantissa_bits | mantissa);
}

float16 to_type(float value, float16) { return {small_float_bits(value, 10, 15)}; }
bfloat16 to_type(float value, bfloat16) { return {small_float_bits(value, 7, 127)}; }
float to_type(float value, float) { return value; }
double to_type(double value, double) { return value; }

template <typename T>
constexpr bool is_small_float = std::is_same_v<T, float16> || std::is_same_v<T, bfloat16>;

// Sums of values of type T are computed in this type.
template <typename T>
using Wide = std::conditional_t<is_small_float<T>, float, T>;

template <typename T>
Wide<T> given(uint64_t source, uint64_t index, uint64_t seed) {
  const auto bits = mix64(seed ^ mix64(source + 1) ^ (index * 0x9E3779B97F4A7C15ull));
  if constexpr (std::is_integral_v<T>) return static_cast<T>(bits);
  else
    return static_cast<Wide<T>>(static_cast<int>(bits % 6) < 3 ? static_cast<int>(bits % 6) - 3
                                                               : static_cast<int>(bits % 6) - 2);
}

template <typename T>
T stored(Wide<T> value) {
  if constexpr (std::is_integral_v<T>) return value;
  else return to_type(value, T{});
}

template <typename W>
W combine(ReduceOp op, W a, W b) {
  if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;
    const auto x = static_cast<U>(a), y = static_cast<U>(b);
    switch (op) {
      case ReduceOp::prod: return static_cast<W>(static_cast<U>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y)));
      case ReduceOp::band: return static_cast<W>(x & y);
      case ReduceOp::bor: return static_cast<W>(x | y);
      case ReduceOp::bxor: return static_cast<W>(x ^ y);
      case ReduceOp::min: return std::min(a, b);
      case ReduceOp::max: return std::max(a, b);
      default: return static_cast<W>(static_cast<U>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y)));
    }
  } else {
    if (op == ReduceOp::prod) return a * b;
    if (op == ReduceOp::min) return std::min(a, b);
    if (op == ReduceOp::max) return std::max(a, b);
    return a + b;
  }
}

// Computes an average: divides a sum by the number of ranks. The cast is needed because a signed sum needs a signed divisor.
template <typename W>
W divided(W sum, uint32_t world) {
  if constexpr (std::is_signed_v<W> && std::is_integral_v<W>)
    return static_cast<W>(static_cast<int64_t>(sum) / static_cast<int64_t>(world));
  else if constexpr (std::is_integral_v<W>) return static_cast<W>(static_cast<uint64_t>(sum) / world);
  else return sum / static_cast<W>(world);
}

// Calls f with a value of the C++ type that corresponds to `type`.
template <typename F>
void with_type(DType type, F&& f) {
  switch (type) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::f16: return f(float16{});
    case DType::bf16: return f(bfloat16{});
    case DType::i8: return f(int8_t{});
    case DType::i16: return f(int16_t{});
    case DType::i32: return f(int32_t{});
    case DType::i64: return f(int64_t{});
    case DType::u8: return f(uint8_t{});
    case DType::u16: return f(uint16_t{});
    case DType::u32: return f(uint32_t{});
    case DType::u64: return f(uint64_t{});
  }
}

}  // namespace

Buffer::Buffer(size_t bytes, size_t offset)
    : begin_(guard_bytes + offset), bytes_(bytes), storage_(begin_ + bytes + guard_bytes, guard_value) {}

bool Buffer::guards_hold() const {
  const auto holds = [](std::byte b) { return b == guard_value; };
  return std::all_of(storage_.begin(), storage_.begin() + static_cast<std::ptrdiff_t>(begin_), holds) &&
         std::all_of(storage_.begin() + static_cast<std::ptrdiff_t>(begin_ + bytes_), storage_.end(), holds);
}

void fill(DType type, std::byte* out, size_t count, uint64_t source, uint64_t seed) {
  with_type(type, [&](auto kind) {
    using T = decltype(kind);
    for (size_t i = 0; i < std::min(count, value_period); ++i) {
      const T value = stored<T>(given<T>(source, i, seed));
      std::memcpy(out + i * sizeof(T), &value, sizeof(T));
    }
    repeat(out, count, sizeof(T));
  });
}

std::vector<std::byte> reduced(DType type, ReduceOp op, size_t count, uint32_t world, uint64_t seed) {
  std::vector<std::byte> out(count * element_bytes(type));
  with_type(type, [&](auto kind) {
    using T = decltype(kind);
    for (size_t i = 0; i < std::min(count, value_period); ++i) {
      auto sum = given<T>(0, i, seed);
      for (uint32_t rank = 1; rank < world; ++rank) sum = combine(op, sum, given<T>(rank, i, seed));
      const T value = stored<T>(op == ReduceOp::avg ? divided(sum, world) : sum);
      std::memcpy(out.data() + i * sizeof(T), &value, sizeof(T));
    }
    repeat(out.data(), count, sizeof(T));
  });
  return out;
}

std::string difference(DType type, const std::byte* got, const std::byte* wanted, size_t count) {
  const auto size = element_bytes(type);
  if (count == 0 || std::memcmp(got, wanted, count * size) == 0) return {};
  const auto hex = [&](const std::byte* at) {
    uint64_t bits = 0;
    std::memcpy(&bits, at, size);
    char text[24];
    std::snprintf(text, sizeof(text), "0x%llx", static_cast<unsigned long long>(bits));
    return std::string(text);
  };
  for (size_t i = 0; i < count; ++i) {
    if (std::memcmp(got + i * size, wanted + i * size, size) == 0) continue;
    return concat("element ", i, " of ", count, " is ", hex(got + i * size), ", should be ", hex(wanted + i * size));
  }
  return {};
}

std::string difference_above(double tolerance, const std::byte* got, const std::byte* wanted, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    float a = 0, b = 0;
    std::memcpy(&a, got + i * sizeof(a), sizeof(a));
    std::memcpy(&b, wanted + i * sizeof(b), sizeof(b));
    if (std::fabs(a - b) <= tolerance) continue;
    return concat("element ", i, " of ", count, " is ", a, ", should be about ", b);
  }
  return {};
}

std::optional<DType> dtype_from(const std::string& text) {
  for (int i = 0; i < dtype_count; ++i) {
    if (text == name(static_cast<DType>(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::optional<ReduceOp> op_from(const std::string& text) {
  for (int i = 0; i < reduce_op_count; ++i) {
    if (text == name(static_cast<ReduceOp>(i))) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

uint64_t hash_of(const std::byte* data, size_t bytes) {
  uint64_t hash = bytes;
  for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, data + at, std::min(sizeof(word), bytes - at));
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace unisono::testing

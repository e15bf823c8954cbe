#include "cli/bench/bench_accuracy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "base/random.h"
#include "codecs/error_bound.h"

namespace unisono::cli {
namespace {

// No normal value exceeds this: the largest value that can be made from 32 random bits is sqrt(2 ln 2^32) = 6.66.
constexpr double largest_normal = 6.7;

// Returns the bits of `value` in a 16-bit type. The type must be able to hold the value exactly.
uint16_t bits_of(DType dtype, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (dtype == DType::bf16) return static_cast<uint16_t>(bits >> 16);
  if (value == 0) return 0;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | (((bits & 0x7FFFFFFF) - (112u << 23)) >> 13));
}

double number_at(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof(bits));
  if (dtype == DType::bf16) return std::bit_cast<float>(uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude =
      exponent == 31  ? (fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : std::numeric_limits<double>::infinity())
      : exponent == 0 ? std::ldexp(fraction, -24)
                      : std::ldexp(1024 + fraction, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// Compares `count` elements of a result with the exact values: expected(i) is the exact value of element i. Adds the errors to
// `accuracy`.
template <typename Expected>
void add(const DataPlan& plan, double bound, const std::byte* result, size_t count, Expected expected, Accuracy& accuracy) {
  const size_t size = element_bytes(plan.dtype);
  for (size_t i = 0; i < count; ++i) {
    const double exact = expected(i), error = number_at(plan.dtype, result + i * size) - exact;
    accuracy.signal += exact * exact;
    accuracy.noise += error * error;
    accuracy.largest = std::max(accuracy.largest, std::fabs(error));
    accuracy.wrong += !(std::fabs(error) <= bound);
  }
  for (size_t at = 0; at < count * size; at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, result + at, std::min<size_t>(8, count * size - at));
    accuracy.bits = mix64(accuracy.bits ^ word);
  }
}

}  // namespace

double Accuracy::snr_db() const {
  return noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
}

double normal_element(const DataPlan& plan, uint32_t rank, uint64_t index) {
  const uint64_t bits = mix64((uint64_t{rank} << 48) + index);
  const double first = static_cast<double>((bits >> 32) + 1) * 0x1p-32,
               second = static_cast<double>(bits & 0xFFFFFFFF) * 0x1p-32;
  const double value = std::sqrt(-2 * std::log(first)) * std::cos(2 * std::numbers::pi * second);
  const double steps = plan.dtype == DType::f32 ? 0x1p12 : 0x1p5;
  return std::nearbyint(value * steps) / steps + 0.0;
}

void fill_normal(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out) {
  auto* bytes = static_cast<std::byte*>(out);
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<float>(normal_element(plan, rank, first + i));
    if (plan.dtype == DType::f32) {
      std::memcpy(bytes + i * sizeof(float), &value, sizeof(float));
    } else {
      const auto bits = bits_of(plan.dtype, value);
      std::memcpy(bytes + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

double error_bound(const DataPlan& plan) {
  const double n = plan.world_size;
  if (!facts_of(plan.collective).reduces) return encoding_error_bound(plan.codec.gather, plan.dtype, largest_normal);
  const double bound = sum_error_bound(plan.codec, plan.dtype, largest_normal, n);
  return plan.op == ReduceOp::avg ? bound / n : bound;
}

Accuracy accuracy_of(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output) {
  Accuracy accuracy;
  const auto* const bytes = static_cast<const std::byte*>(output);
  const double bound = error_bound(plan);
  const auto mine = static_cast<uint64_t>(rank) * block_count;
  const auto reduced = [&](uint64_t start) {
    add(
        plan, bound, bytes, block_count,
        [&](size_t i) {
          double sum = 0;
          for (uint32_t source = 0; source < plan.world_size; ++source) sum += normal_element(plan, source, start + i);
          return plan.op == ReduceOp::avg ? sum / plan.world_size : sum;
        },
        accuracy);
  };
  if (plan.collective == Collective::all_reduce) reduced(0);
  if (plan.collective == Collective::reduce_scatter) reduced(mine);
  const bool gathers = plan.collective == Collective::all_gather;
  if (!gathers && plan.collective != Collective::all_to_all) return accuracy;
  for (uint32_t source = 0; source < plan.world_size; ++source) {
    const auto* const block = bytes + source * block_count * element_bytes(plan.dtype);
    add(
        plan, bound, block, block_count, [&](size_t i) { return normal_element(plan, source, (gathers ? 0 : mine) + i); },
        accuracy);
  }
  return accuracy;
}

}  // namespace unisono::cli

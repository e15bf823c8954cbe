#include "cli/bench/bench_data.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>
#include <vector>

#include "base/random.h"
#include "cli/bench/bench_accuracy.h"

namespace unisono::cli {
namespace {

constexpr size_t block_elements = 4096;  // this many elements are generated or compared at a time
constexpr size_t element_bytes_max = 8;

// Returns a small whole number. When the numbers of all ranks are reduced, the result is at most 256, because bf16 holds whole
// numbers up to 256 exactly.
int64_t small_number(const DataPlan& plan, uint32_t rank, uint64_t index) {
  const uint64_t n = plan.world_size;
  switch (plan.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return n <= 85 ? static_cast<int64_t>((index * 31 + rank * 17) % 4) : (index + rank) % (n / 128 + 2) == 0;
    case ReduceOp::min:
    case ReduceOp::max: return static_cast<int64_t>(mix64(index * 4099 + rank) % 101);
    case ReduceOp::prod: return index % n == rank ? 2 : 1;
    default: return 0;
  }
}

// Rounds a finite value to the nearest bf16 number; a tie goes to the even one. A bf16 number is the upper half of an fp32
// number.
uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Rounds a value to the nearest fp16 number; a tie goes to the even one. The value must be zero or in the range of the normal
// fp16 numbers. No other values occur here.
uint16_t to_float16(float value) {
  if (value == 0) return 0;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rebiased = (bits & 0x7FFFFFFF) - ((127 - 15) << 23);
  const uint32_t rounded = (rebiased + 0xFFF + ((rebiased >> 13) & 1)) >> 13;
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | rounded);
}

template <typename T>
void put(T value, std::byte* out) {
  std::memcpy(out, &value, sizeof(T));
}

// Stores a whole number as an element of the type `dtype`. If divisor > 1, the number is divided first. An integer type wraps
// the number before the division, and the quotient is truncated towards zero.
void store(DType dtype, int64_t value, uint32_t divisor, std::byte* out) {
  const auto whole = [&]<typename T>(T wrapped) {
    put(static_cast<T>(divisor > 1 ? wrapped / static_cast<std::common_type_t<T, int64_t>>(divisor) : wrapped), out);
  };
  const float narrow = static_cast<float>(value) / static_cast<float>(divisor);
  switch (dtype) {
    case DType::f32: return put(narrow, out);
    case DType::f64: return put(static_cast<double>(value) / divisor, out);
    case DType::f16: return put(to_float16(narrow), out);
    case DType::bf16: return put(to_bfloat16(narrow), out);
    case DType::i8: return whole(static_cast<int8_t>(value));
    case DType::i16: return whole(static_cast<int16_t>(value));
    case DType::i32: return whole(static_cast<int32_t>(value));
    case DType::i64: return whole(value);
    case DType::u8: return whole(static_cast<uint8_t>(value));
    case DType::u16: return whole(static_cast<uint16_t>(value));
    case DType::u32: return whole(static_cast<uint32_t>(value));
    case DType::u64: return whole(static_cast<uint64_t>(value));
  }
}

uint64_t arbitrary_bits(uint32_t rank, uint64_t index) { return mix64((static_cast<uint64_t>(rank) << 48) + index); }

void store_bits(uint32_t rank, size_t first, size_t count, size_t bytes_each, void* out) {
  auto* bytes = static_cast<std::byte*>(out);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = arbitrary_bits(rank, first + i);
    std::memcpy(bytes + i * bytes_each, &bits, bytes_each);
  }
}

bool is_bit_operation(ReduceOp op) { return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor; }

int64_t fold(ReduceOp op, int64_t a, int64_t b) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return a + b;
    case ReduceOp::min: return std::min(a, b);
    case ReduceOp::max: return std::max(a, b);
    case ReduceOp::prod: return a * b;
    case ReduceOp::band: return a & b;
    case ReduceOp::bor: return a | b;
    case ReduceOp::bxor: return a ^ b;
  }
  return 0;
}

// Returns an input element of one rank as a whole number. For bit operations, the number has 64 random bits, of which the
// element keeps as many low bits as its type has.
int64_t element_of(const DataPlan& plan, uint32_t rank, uint64_t index) {
  return is_bit_operation(plan.op) ? static_cast<int64_t>(arbitrary_bits(rank, index)) : small_number(plan, rank, index);
}

// Computes the elements that a result should have, block by block.
class Expectation {
 public:
  explicit Expectation(const DataPlan& plan) : plan_(plan), block_(block_elements * element_bytes_max) {}

  // Returns elements [first, first + count) of the reduction over all ranks. `count` must be at most block_elements.
  const void* reduced(size_t first, size_t count) {
    const auto divisor = plan_.op == ReduceOp::avg ? plan_.world_size : 1;
    for (size_t i = 0; i < count; ++i) {
      int64_t value = element_of(plan_, 0, first + i);
      for (uint32_t rank = 1; rank < plan_.world_size; ++rank)
        value = fold(plan_.op, value, element_of(plan_, rank, first + i));
      store(plan_.dtype, value, divisor, block_.data() + i * element_bytes(plan_.dtype));
    }
    return block_.data();
  }
  const void* moved(uint32_t rank, size_t first, size_t count) {
    fill_input(plan_, rank, first, count, block_.data());
    return block_.data();
  }

 private:
  const DataPlan& plan_;
  std::vector<std::byte> block_;
};

uint64_t differences(const void* a, const void* b, size_t count, size_t bytes_each) {
  if (std::memcmp(a, b, count * bytes_each) == 0) return 0;
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    wrong += std::memcmp(static_cast<const std::byte*>(a) + i * bytes_each, static_cast<const std::byte*>(b) + i * bytes_each,
                         bytes_each) != 0;
  }
  return wrong;
}

// Returns how many of the first `count` output elements are wrong. The function expect(at, size) must return the `size`
// expected elements that begin at index `at`.
template <typename Expect>
uint64_t compare(const DataPlan& plan, const std::byte* output, size_t count, Expect expect) {
  uint64_t wrong = 0;
  const auto bytes_each = element_bytes(plan.dtype);
  for (size_t at = 0; at < count; at += block_elements) {
    const auto size = std::min(block_elements, count - at);
    wrong += differences(output + at * bytes_each, expect(at, size), size, bytes_each);
  }
  return wrong;
}

}  // namespace

void fill_input(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out) {
  if (!plan.codec.is_plain()) return fill_normal(plan, rank, first, count, out);
  if (!facts_of(plan.collective).reduces || is_bit_operation(plan.op)) {
    return store_bits(rank, first, count, element_bytes(plan.dtype), out);
  }
  for (size_t i = 0; i < count; ++i) {
    store(plan.dtype, small_number(plan, rank, first + i), 1, static_cast<std::byte*>(out) + i * element_bytes(plan.dtype));
  }
}

uint64_t count_wrong(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output) {
  if (!plan.codec.is_plain()) return accuracy_of(plan, rank, block_count, output).wrong;
  Expectation expectation(plan);
  const auto* bytes = static_cast<const std::byte*>(output);
  const auto n = plan.world_size;
  const auto mine = static_cast<size_t>(rank) * block_count;
  const auto reduced_from = [&](size_t start) {
    return compare(plan, bytes, block_count, [&](size_t at, size_t size) { return expectation.reduced(start + at, size); });
  };
  const auto moved_from = [&](uint32_t source, size_t start, size_t block) {
    return compare(plan, bytes + block * block_count * element_bytes(plan.dtype), block_count,
                   [&](size_t at, size_t size) { return expectation.moved(source, start + at, size); });
  };
  uint64_t wrong = 0;
  switch (plan.collective) {
    case Collective::all_reduce: return reduced_from(0);
    case Collective::reduce: return rank == plan.root ? reduced_from(0) : 0;
    case Collective::reduce_scatter: return reduced_from(mine);
    case Collective::broadcast: return moved_from(plan.root, 0, 0);
    case Collective::scatter: return moved_from(plan.root, mine, 0);
    case Collective::send_recv: return moved_from((rank + n - 1) % n, 0, 0);
    case Collective::gather:
      if (rank != plan.root) return 0;
      [[fallthrough]];
    case Collective::all_gather:
      for (uint32_t source = 0; source < n; ++source) wrong += moved_from(source, 0, source);
      return wrong;
    case Collective::all_to_all:
      for (uint32_t source = 0; source < n; ++source) wrong += moved_from(source, mine, source);
      return wrong;
    case Collective::barrier: return 0;
  }
  return 0;
}

}  // namespace unisono::cli

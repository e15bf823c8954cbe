#include "cli/bench_data.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/dispatch.h"

namespace unisono::cli {
namespace {

constexpr size_t block_elements = 4096;  // worked on at once
constexpr size_t element_bytes_max = 8;

// bf16 holds whole numbers up to 256 exactly: sums of all ranks stay below.
int64_t small_number(const DataPlan& plan, uint32_t rank, uint64_t index) {
  const uint64_t n = plan.world_size;
  switch (plan.op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return n <= 85 ? static_cast<int64_t>((index * 31 + rank * 17) % 4) : (index + rank) % (n / 128 + 2) == 0;
    case ReduceOp::min:
    case ReduceOp::max: return static_cast<int64_t>(mix64(index * 4099 + rank) % 101);
    case ReduceOp::prod: return index % n == rank ? 2 : 1;
    default: return 0;
  }
}

template <typename T>
void store(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out) {
  auto* bytes = static_cast<std::byte*>(out);
  for (size_t i = 0; i < count; ++i) {
    const auto value = static_cast<T>(small_number(plan, rank, first + i));
    std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
}

void store_narrow(const DataPlan& plan, uint32_t rank, size_t first, size_t count, void* out) {
  std::vector<float> wide(std::min(count, block_elements));
  auto* bytes = static_cast<std::byte*>(out);
  for (size_t at = 0; at < count; at += block_elements) {
    const auto size = std::min(block_elements, count - at);
    store<float>(plan, rank, first + at, size, wide.data());
    kernels::convert_reference(plan.dtype, bytes + at * element_bytes(plan.dtype), DType::f32, wide.data(), size);
  }
}

void store_bits(uint32_t rank, size_t first, size_t count, size_t bytes_each, void* out) {
  auto* bytes = static_cast<std::byte*>(out);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = mix64((static_cast<uint64_t>(rank) << 48) + first + i);
    std::memcpy(bytes + i * bytes_each, &bits, bytes_each);
  }
}

bool is_bit_operation(ReduceOp op) { return op == ReduceOp::band || op == ReduceOp::bor || op == ReduceOp::bxor; }

// Room for one block of each rank, and what they reduce to.
class Expectation {
 public:
  explicit Expectation(const DataPlan& plan)
      : plan_(plan), inputs_(facts_of(plan.collective).reduces ? plan.world_size * block_elements * element_bytes_max : 0),
        block_(block_elements * element_bytes_max) {}

  // The reduction of elements [first, first + count) of all ranks; count <= block_elements.
  const void* reduced(size_t first, size_t count) {
    std::vector<const void*> sources;
    for (uint32_t rank = 0; rank < plan_.world_size; ++rank) {
      auto* place = inputs_.data() + rank * block_elements * element_bytes_max;
      fill_input(plan_, rank, first, count, place);
      sources.push_back(place);
    }
    kernels::reduce_reference({.dtype = plan_.dtype,
                               .op = plan_.op,
                               .sources = sources,
                               .destination = block_.data(),
                               .copy = nullptr,
                               .count = count,
                               .divisor = plan_.op == ReduceOp::avg ? plan_.world_size : 1});
    return block_.data();
  }
  const void* moved(uint32_t rank, size_t first, size_t count) {
    fill_input(plan_, rank, first, count, block_.data());
    return block_.data();
  }

 private:
  const DataPlan& plan_;
  std::vector<std::byte> inputs_;
  std::vector<std::byte> block_;
};

uint64_t differences(const void* a, const void* b, size_t count, size_t bytes_each) {
  if (std::memcmp(a, b, count * bytes_each) == 0) return 0;
  uint64_t wrong = 0;
  for (size_t i = 0; i < count; ++i) {
    wrong += std::memcmp(static_cast<const std::byte*>(a) + i * bytes_each, static_cast<const std::byte*>(b) + i * bytes_each, bytes_each) != 0;
  }
  return wrong;
}

// Compares output elements [0, count) with expect(at, size), block by block.
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
  if (!facts_of(plan.collective).reduces || is_bit_operation(plan.op)) {
    return store_bits(rank, first, count, element_bytes(plan.dtype), out);
  }
  switch (plan.dtype) {
    case DType::f32: return store<float>(plan, rank, first, count, out);
    case DType::f64: return store<double>(plan, rank, first, count, out);
    case DType::f16:
    case DType::bf16: return store_narrow(plan, rank, first, count, out);
    case DType::i8:
    case DType::u8: return store<int8_t>(plan, rank, first, count, out);
    case DType::i16:
    case DType::u16: return store<int16_t>(plan, rank, first, count, out);
    case DType::i32:
    case DType::u32: return store<int32_t>(plan, rank, first, count, out);
    case DType::i64:
    case DType::u64: return store<int64_t>(plan, rank, first, count, out);
  }
}

uint64_t count_wrong(const DataPlan& plan, uint32_t rank, size_t block_count, const void* output) {
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

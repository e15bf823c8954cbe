// Measures the kernels on one core. The bytes per second include all bytes that are read and all that are written. Compare them
// with memcpy, which is the first kernel in the list.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/concat.h"
#include "kernels/blocks.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "kernels/sketch.h"

namespace unisono::kernels {
namespace {

struct FreeDeleter {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<std::byte, FreeDeleter>;

// Returns memory that begins at a page boundary, with some space for an offset. If no offset is used, no access crosses the
// border between two cache lines.
Memory memory(size_t bytes) {
  const size_t rounded = (bytes + 4096 + 4095) / 4096 * 4096;
  auto* at = static_cast<std::byte*>(std::aligned_alloc(4096, rounded));
  std::memset(at, 0x3C, rounded);
  return Memory(at);
}

void count_bytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * static_cast<int64_t>(state.iterations()));
}

// The arguments are the bytes of one tensor and the number of sources. The first source is also the destination.
void reduce_in_place(benchmark::State& state, DType dtype, ReduceOp op, bool with_copy, size_t offset) {
  const auto bytes = static_cast<size_t>(state.range(0));
  std::vector<Memory> memories;
  std::vector<const void*> sources;
  for (int64_t s = 0; s < state.range(1); ++s) {
    memories.push_back(memory(bytes));
    sources.push_back(memories.back().get() + 64 * s + offset);
  }
  const auto copied = memory(with_copy ? bytes : 0);
  const Reduction task{.dtype = dtype,
                       .op = op,
                       .sources = sources,
                       .destination = const_cast<void*>(sources[0]),
                       .copy = with_copy ? copied.get() + 128 : nullptr,
                       .count = bytes / element_bytes(dtype)};
  for (auto _ : state) {
    reduce(task);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes * (sources.size() + 1 + with_copy));
}

void reduce_out_of_place(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto a = memory(bytes), b = memory(bytes), result = memory(bytes);
  const void* sources[] = {a.get(), b.get()};
  for (auto _ : state) {
    reduce({.sources = sources, .destination = result.get() + 128, .count = bytes / 4});
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes * 3);
}

template <typename Function>
void copy_with(benchmark::State& state, Function function) {
  const auto bytes = static_cast<size_t>(state.range(0));
  const auto from = memory(bytes), to = memory(bytes);
  for (auto _ : state) {
    function(to.get() + 64, from.get(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes * 2);
}

void convert_between(benchmark::State& state, DType to_type, DType from_type) {
  const auto count = static_cast<size_t>(state.range(0)) / 4;
  const auto from = memory(count * 4), to = memory(count * 4);
  for (auto _ : state) {
    convert(to_type, to.get(), from_type, from.get(), count);
    benchmark::ClobberMemory();
  }
  count_bytes(state, count * 6);
}

enum class BlockWork : uint8_t { encode, decode, decode_add, check };

// The argument is 4 times the number of elements, so that the results of all types can be compared. The values are random.
void blocks(benchmark::State& state, BlockWork work, const BlockFormat& format, DType type) {
  const auto count = static_cast<size_t>(state.range(0)) / 4, bytes = count * element_bytes(type),
             block_size = block_bytes(format, count);
  const auto elements = memory(bytes), block = memory(block_size), wide = memory(count * 4);
  auto* const values = elements.get();
  auto* const floats = reinterpret_cast<float*>(wide.get());
  uint32_t seed = 1;
  for (size_t i = 0; i < count; ++i)
    floats[i] = static_cast<float>(static_cast<int32_t>(seed = 1664525 * seed + 1013904223)) * 0x1p-31f;
  if (type == DType::f32) std::memcpy(values, floats, bytes);
  else convert(type, values, DType::f32, floats, count);
  BlockCounts counts;
  encode_block(format, type, values, count, block.get(), counts);
  for (auto _ : state) {
    switch (work) {
      case BlockWork::encode: encode_block(format, type, values, count, block.get(), counts); break;
      case BlockWork::decode: decode_block(format, block.get(), count, type, values, counts); break;
      case BlockWork::decode_add: decode_add_block(format, block.get(), count, values); break;
      case BlockWork::check: benchmark::DoNotOptimize(is_block(format, block.get(), block_size, count)); break;
    }
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes * (work == BlockWork::decode_add ? 2 : 1) + block_size);
  state.counters["elements"] = benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}

// The argument is the number of bytes of the fp32 elements.
void fp8_blocks(benchmark::State& state, BlockWork work) {
  const auto count = static_cast<size_t>(state.range(0)) / 4;
  const auto layout = fp8_layout_of(fp8_format, count);
  const auto elements = memory(count * 4), block = memory(layout.bytes);
  auto* const floats = reinterpret_cast<float*>(elements.get());
  uint32_t seed = 1;
  for (size_t i = 0; i < count; ++i)
    floats[i] = static_cast<float>(static_cast<int32_t>(seed = 1664525 * seed + 1013904223)) * 0x1p-31f;
  BlockCounts counts;
  fp8_encode_part(fp8_format, layout, {0, count}, DType::f32, floats, block.get(), counts);
  for (auto _ : state) {
    switch (work) {
      case BlockWork::encode: fp8_encode_part(fp8_format, layout, {0, count}, DType::f32, floats, block.get(), counts); break;
      case BlockWork::decode: fp8_decode_part(fp8_format, layout, {0, count}, block.get(), DType::f32, floats, counts); break;
      case BlockWork::decode_add: fp8_decode_add_part(fp8_format, layout, {0, count}, block.get(), floats); break;
      case BlockWork::check: benchmark::DoNotOptimize(is_fp8_block(fp8_format, block.get(), layout.bytes, count)); break;
    }
    benchmark::ClobberMemory();
  }
  count_bytes(state, count * (work == BlockWork::decode_add ? 8 : 4) + layout.bytes);
  state.counters["elements"] = benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
}

// The arguments are the numbers of columns and of directions. Computes sketches of 64 MiB of values plus 64 MiB of residuals,
// both of which are read from memory. If `apart` is true, the sum of both goes to separate memory and the values become zero,
// as in error feedback.
void sketch_rows(benchmark::State& state, bool apart) {
  const auto columns = static_cast<size_t>(state.range(0)), rows = (size_t{16} << 20) / columns;
  const auto rank = static_cast<uint32_t>(state.range(1));
  const auto values = memory(rows * columns * 4), left = memory(rows * columns * 4),
             moved = memory(apart ? rows * columns * 4 : 0), directions = memory(rank * direction_stride(columns) * 4),
             out = memory(rows * rank * 4);
  const auto floats = [](const Memory& m) { return reinterpret_cast<float*>(m.get()); };
  for (auto _ : state) {
    sketch({.values = floats(values),
            .residual = floats(left),
            .moved = apart ? floats(moved) : nullptr,
            .far = apart,
            .rows = rows,
            .columns = columns,
            .directions = floats(directions),
            .stride = direction_stride(columns),
            .rank = rank,
            .sketch = floats(out)});
    benchmark::ClobberMemory();
  }
  count_bytes(state, rows * columns * (apart ? 16 : 12));
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t bytes : {20, 64, 1 << 10, 16 << 10, 256 << 10, 4 << 20, 64 << 20}) bench->Args({bytes, 2});
}

void many_sources(benchmark::internal::Benchmark* bench) {
  for (const int64_t sources : {4, 8, 16, 64}) {
    for (const int64_t bytes : {1 << 10, 64 << 10, 4 << 20}) bench->Args({bytes, sources});
  }
}

void copy_sizes(benchmark::internal::Benchmark* bench) {
  for (int64_t bytes = 4 << 10; bytes <= 256 << 20; bytes *= 4) bench->Args({bytes});
}

template <typename Add>
void add_blocks(Add add) {
  const auto kernels = [&](const std::string& suffix, BlockFormat format, DType type) {
    for (const uint8_t bits : {8, 7, 6, 5, 4, 3, 2}) {
      format.bits = bits;
      const auto kernel = [&](const char* name, BlockWork work) {
        add(concat(name, bits, suffix), [=](benchmark::State& state) { blocks(state, work, format, type); })
            ->Args({256 << 10})
            ->Args({16 << 20});
      };
      kernel("encode_int", BlockWork::encode);
      kernel("decode_int", BlockWork::decode);
      if (type == DType::f32) kernel("decode_add_int", BlockWork::decode_add), kernel("is_block_int", BlockWork::check);
    }
  };
  kernels("", {.metadata = Metadata::bf16}, DType::f32);
  kernels("_spikes", {.metadata = Metadata::bf16, .spikes = true}, DType::f32);
  kernels("_f16meta", {.metadata = Metadata::f16}, DType::f32);
  kernels("_bf16", {.metadata = Metadata::bf16}, DType::bf16);
  kernels("_f16", {.metadata = Metadata::f16}, DType::f16);
}

template <typename Add>
void add_fp8(Add add) {
  const std::pair<const char*, BlockWork> kernels[] = {{"encode_fp8", BlockWork::encode},
                                                       {"decode_fp8", BlockWork::decode},
                                                       {"decode_add_fp8", BlockWork::decode_add},
                                                       {"is_block_fp8", BlockWork::check}};
  for (const auto& [name, work] : kernels)
    add(name, [work = work](benchmark::State& state) { fp8_blocks(state, work); })->Args({256 << 10})->Args({16 << 20});
}

void add_all(const std::string& target) {
  const auto add = [&](const std::string& name, auto function) {
    return benchmark::RegisterBenchmark((target + "/" + name).c_str(), [=](benchmark::State& state) {
      if (!force_target(target.c_str())) return state.SkipWithError("no such target");
      function(state);
      force_target("");
    });
  };
  const auto reduction = [&](const char* name, DType dtype, ReduceOp op, bool with_copy, size_t offset) {
    return add(name, [=](benchmark::State& state) { reduce_in_place(state, dtype, op, with_copy, offset); });
  };
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64, DType::u8}) {
    reduction((std::string("sum_") + name(dtype)).c_str(), dtype, ReduceOp::sum, false, 0)->Apply(sizes);
  }
  reduction("sum_f32_misaligned", DType::f32, ReduceOp::sum, false, 4)->Apply(sizes);
  reduction("sum_f32_copy", DType::f32, ReduceOp::sum, true, 0)->Apply(sizes);
  reduction("max_f32", DType::f32, ReduceOp::max, false, 0)->Apply(sizes);
  reduction("sum_f32", DType::f32, ReduceOp::sum, false, 0)->Apply(many_sources);
  reduction("sum_bf16", DType::bf16, ReduceOp::sum, false, 0)->Apply(many_sources);
  add("sum_f32_out_of_place", reduce_out_of_place)->Apply(sizes);
  const auto conversion = [&](DType to, DType from) {
    add(std::string(name(to)) + "_from_" + name(from), [=](benchmark::State& state) {
      convert_between(state, to, from);
    })->Apply(sizes);
  };
  for (const DType half : {DType::bf16, DType::f16}) conversion(DType::f32, half), conversion(half, DType::f32);
  add_blocks(add);
  add_fp8(add);
  for (const bool apart : {false, true})
    add(apart ? "sketch_apart" : "sketch", [=](benchmark::State& state) {
      sketch_rows(state, apart);
    })->ArgsProduct({{1024, 4096, 16384}, {1, 4, 8}});
  add("copy", [](benchmark::State& state) { copy_with(state, copy); })->Apply(copy_sizes);
}

}  // namespace
}  // namespace unisono::kernels

int main(int argument_count, char** arguments) {
  benchmark::Initialize(&argument_count, arguments);
  benchmark::RegisterBenchmark("memcpy", [](benchmark::State& state) {
    unisono::kernels::copy_with(state, std::memcpy);
  })->Apply(unisono::kernels::copy_sizes);
  for (const char* target : unisono::kernels::targets()) unisono::kernels::add_all(target);
  benchmark::RunSpecifiedBenchmarks();
}

// Chooses the instruction set once. After that, every call goes through the table of functions of this instruction set.
#include "kernels/dispatch.h"

#include <atomic>
#include <cstring>

#include "base/check.h"
#include "kernels/kernel_table.h"

namespace unisono::kernels {
namespace {

// The table that is in use; null until the first call. This is the only state of the kernels. Several threads may set it at the
// same time, but all of them store the same pointer. force_target() sets it, too. To load the pointer is cheap, even for a
// small call.
std::atomic<const KernelTable*> chosen = nullptr;

const KernelTable& choose() {
  const auto* best = runnable_tables().front();
  chosen.store(best, std::memory_order_release);
  return *best;
}

inline const KernelTable& table() {
  const auto* current = chosen.load(std::memory_order_acquire);
  return current != nullptr ? *current : choose();
}

// From this size on, streaming stores are used. This was measured on Zen 5 with 32 MiB of third-level cache. The copy alone is
// faster with streaming stores from 12 MiB on (64 MiB: 2.4 ms, not 3.6). However, the bytes are read soon afterwards. Together
// with the reading, streaming stores are faster only from 24 MiB on.
constexpr size_t stream_bytes_min = size_t{24} << 20;

// Above 4 KiB, the C library copies with "rep movsb". On AMD's Zen 3 and 4, this instruction is 20 times slower if the
// destination's offset in its page is 1 to 31 bytes above the source's offset (glibc bug 30994). Copies between user memory and
// slots often have such offsets: slots in shared memory begin at a page boundary, and large vectors and NumPy arrays begin 16
// bytes after one, behind the allocator's header.
bool slows_string_copies(const void* destination, const void* source) {
  const auto after = (reinterpret_cast<uintptr_t>(destination) - reinterpret_cast<uintptr_t>(source)) % 4096;
  return after > 0 && after < 32;
}

}  // namespace

void reduce(const Reduction& task) {
  if (task.count == 0) return;
  UNISONO_CHECK(!task.sources.empty());
  const auto dtype = static_cast<size_t>(task.dtype), op = static_cast<size_t>(task.op);
  UNISONO_CHECK(dtype < dtype_count && op < reduce_op_count);
  const auto function = table().reduce[dtype][op];
  UNISONO_CHECK(function != nullptr);
  function(task);
}

void copy(void* destination, const void* source, size_t bytes) {
  if (bytes == 0) return;
  if (bytes >= stream_bytes_min) return stream_copy(destination, source, bytes);
  if (bytes > 2048 && slows_string_copies(destination, source)) return table().line_copy(destination, source, bytes);
  std::memcpy(destination, source, bytes);
}

void stream_copy(void* destination, const void* source, size_t bytes) {
  if (bytes > 0) table().stream_copy(destination, source, bytes);
}

void convert(DType to, void* destination, DType from, const void* source, size_t count) {
  if (count == 0) return;
  ConvertFunction function = nullptr;
  if (to == DType::f32 && from == DType::bf16) function = table().f32_from_bf16;
  if (to == DType::f32 && from == DType::f16) function = table().f32_from_f16;
  if (to == DType::bf16 && from == DType::f32) function = table().bf16_from_f32;
  if (to == DType::f16 && from == DType::f32) function = table().f16_from_f32;
  UNISONO_CHECK(function != nullptr);
  function(destination, source, count);
}

int64_t target_in_use() { return table().target; }

double sketch(const SketchTask& task) { return table().sketch(task); }

double weighted_mean(const WeightedMeanTask& task) {
  if (task.count == 0) return 0;
  UNISONO_CHECK(!task.sources.empty());
  return table().weighted_mean(task);
}

static bool has_blocks(DType type) { return type == DType::f32 || type == DType::f16 || type == DType::bf16; }

void encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                 void* block, BlockCounts& counts) {
  UNISONO_CHECK(has_blocks(from) && part.first % format.group == 0);
  block_kernels_of(table().target).encode(format, layout, part, from, elements, block, counts);
}

void decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                 void* elements, BlockCounts& counts) {
  UNISONO_CHECK(has_blocks(to) && part.first % format.group == 0);
  block_kernels_of(table().target).decode(format, layout, part, block, to, elements, counts);
}

void decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums) {
  UNISONO_CHECK(part.first % format.group == 0);
  block_kernels_of(table().target).decode_add(format, layout, part, block, sums);
}

void encode_block(const BlockFormat& format, DType from, const void* elements, size_t count, void* block, BlockCounts& counts) {
  encode_part(format, layout_of(format, count), {0, count}, from, elements, block, counts);
}

void decode_block(const BlockFormat& format, const void* block, size_t count, DType to, void* elements, BlockCounts& counts) {
  decode_part(format, layout_of(format, count), {0, count}, block, to, elements, counts);
}

void decode_add_block(const BlockFormat& format, const void* block, size_t count, void* sums) {
  decode_add_part(format, layout_of(format, count), {0, count}, block, sums);
}

std::span<const char* const> targets() { return runnable_names(); }

bool force_target(const char* name) {
  if (*name == '\0') return choose(), true;
  const auto names = runnable_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::strcmp(names[i], name) != 0) continue;
    chosen.store(runnable_tables()[i], std::memory_order_release);
    return true;
  }
  return false;
}

}  // namespace unisono::kernels

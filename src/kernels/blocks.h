// A block encodes elements as codes of 2 to 8 bits. The elements form groups, and each group has a scale and a minimum.
// docs/reference/wire_format.md describes the layout and the reasons for it.
//
// A block encodes `count` consecutive elements. Each group consists of consecutive elements, and the last group may be partial.
// The bytes of a block depend only on the format and the elements, and are little-endian on every machine. Any alignment and
// any count are allowed.
//
// Every SIMD target (instruction set) writes the same bytes as the reference, even if the processor flushes denormals to zero.
// Groups, bit splitting and spikes are from Flash Communication (arXiv 2412.04964, 2508.03760); the layout and the rounding are
// not.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "unisono/tensor.h"

namespace unisono::kernels {

// The number type of scales, minima and spikes. The values of the enumerators are part of the wire format.
enum class Metadata : uint8_t { f16 = 0, bf16 = 1, f32 = 2 };

struct BlockFormat {
  uint8_t bits = 8;      // bits of one code, 2 to 8
  uint16_t group = 128;  // number of elements that share a scale: 32, 64, 128 or 256
  Metadata metadata = Metadata::f16;
  // True: the smallest and the largest element of each group (its spikes) are stored as numbers, not as codes.
  bool spikes = false;
  // Says what happens to a value that is too large for the metadata, or for the type to which a block is decoded. If true, it
  // becomes NaN. If false, it saturates. The flag is not sent with the block.
  bool poison = false;

  bool valid() const;
  friend bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

// The offsets of the parts of a block, in bytes. One kind of part is the plane, which holds certain bits of all codes.
struct BlockLayout {
  struct Plane {
    uint8_t width = 0;  // number of bits of each code that are in this plane
    uint8_t shift = 0;  // position in the code of the lowest of these bits
    size_t offset = 0;
  };
  std::array<Plane, 3> planes{};  // the widest plane comes first; unused entries have width 0
  size_t padding = 0;             // offset of zero bytes, which align the scales to 4 bytes
  size_t scales = 0;              // offset of the (scale, minimum) pairs, one pair per group
  size_t spikes = 0;              // offset of the (lowest, highest) pairs, one pair per group
  size_t spike_indices = 0;       // offset of the indices of the spikes in their groups, one byte for each spike
  size_t bytes = 0;               // size of the whole block
  size_t count = 0;               // number of elements in the block
};
BlockLayout layout_of(const BlockFormat& format, size_t count);
inline size_t block_bytes(const BlockFormat& format, size_t count) { return layout_of(format, count).bytes; }

// Counts special values. Encoding and decoding add to the counts.
struct BlockCounts {
  uint64_t saturated = 0;  // elements that were too large
  // Groups that became NaN, because they held a NaN, an infinity, or (with `poison`) a value that was too large.
  uint64_t nonfinite_groups = 0;
};

// In all functions below, `from` and `to` must be f32, f16 or bf16. The block and the elements must not overlap.
void encode_block(const BlockFormat& format, DType from, const void* elements, size_t count, void* block, BlockCounts& counts);
void encode_block_reference(const BlockFormat& format, DType from, const void* elements, size_t count, void* block,
                            BlockCounts& counts);

// A part of a block: the elements [first, first + count). A part consists of whole groups, but the last group of the block may
// be partial. The parts of a block may be encoded or decoded separately, also by several threads. `elements` and `sums` point
// to the first element of the part.
struct BlockPart {
  size_t first = 0, count = 0;
};
void encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                 void* block, BlockCounts& counts);
void decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                 void* elements, BlockCounts& counts);
void decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums);

// Returns whether encode_block could have written these bytes, as far as a decoder can tell. Callers use this function to check
// received bytes before they decode them. Without the check, decoding still stays inside the buffers, but the values may be
// meaningless.
bool is_block(const BlockFormat& format, const void* block, size_t bytes, size_t count);

// If `to` is a 16-bit type, values are rounded to nearest even. A finite value that is too large for `to` saturates and is
// counted. With format.poison, it becomes NaN.
void decode_block(const BlockFormat& format, const void* block, size_t count, DType to, void* elements, BlockCounts& counts);
void decode_block_reference(const BlockFormat& format, const void* block, size_t count, DType to, void* elements,
                            BlockCounts& counts);
// Adds decoded elements to sums: sums[i] += decoded[i], in fp32. If a result is NaN, it is always the positive quiet NaN, as
// for Reduction in kernels/dispatch.h.
void decode_add_block(const BlockFormat& format, const void* block, size_t count, void* sums);
void decode_add_block_reference(const BlockFormat& format, const void* block, size_t count, void* sums);

// Replaces finite values that are too large for the 16-bit type `to`. The new value is NaN if `poison`, and otherwise the
// type's largest number with the same sign. Infinities stay.
void bound_values(DType to, float* values, size_t count, bool poison, BlockCounts& counts);

}  // namespace unisono::kernels

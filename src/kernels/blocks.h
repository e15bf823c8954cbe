// Blocks: elements as codes of 2 to 8 bits, in groups that have a scale and a minimum each (docs/reference/wire_format.md has
// the layout and why).
//
// One block is the encoding of `count` consecutive elements; groups are consecutive, the last may be partial. All sizes and
// bits are those of the format, on every machine: little-endian, nothing of this host. Any alignment, any count. Every target
// gives the reference's bytes; neither flush-to-zero nor denormals-are-zero changes them. Source: Flash Communication (arXiv
// 2412.04964, 2508.03760) for groups, bit splitting and spikes; the layout and all rounding are ours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "unisono/tensor.h"

namespace unisono::kernels {

// The type of scales, minima and spikes. The numbers are part of the wire format.
enum class Metadata : uint8_t { f16 = 0, bf16 = 1, f32 = 2 };

struct BlockFormat {
  uint8_t bits = 8;      // of a code, 2 to 8
  uint16_t group = 128;  // elements with one scale: 32, 64, 128 or 256
  Metadata metadata = Metadata::f16;
  bool spikes = false;  // a group's smallest and largest element stand beside its codes
  bool poison = false;  // what is too large for the metadata, or for the type decoded to, becomes NaN; else it saturates. Not
                        // in the bytes

  bool valid() const;
  friend bool operator==(const BlockFormat&, const BlockFormat&) = default;
};

// Where the parts of a block begin, in bytes.
struct BlockLayout {
  struct Plane {
    uint8_t width = 0;  // bits of each code
    uint8_t shift = 0;  // of the plane's bits in the code
    size_t offset = 0;
  };
  std::array<Plane, 3> planes{};  // the widest first; width 0: there are no more
  size_t padding = 0;             // zero bytes up to a multiple of 4
  size_t scales = 0;              // (scale, minimum) per group
  size_t spikes = 0;              // (lowest, highest) per group
  size_t places = 0;              // their indices in the group, a byte each
  size_t bytes = 0;               // of the block
  size_t count = 0;               // of its elements
};
BlockLayout layout_of(const BlockFormat& format, size_t count);
inline size_t block_bytes(const BlockFormat& format, size_t count) { return layout_of(format, count).bytes; }

// Special values that were met while encoding or decoding. Each call adds to the counts.
struct BlockCounts {
  uint64_t saturated = 0;         // elements that were too large
  uint64_t nonfinite_groups = 0;  // groups that became NaN, because a NaN or an infinity was in them
};

// `from` and `to` are f32, f16 or bf16. The block and the elements do not overlap.
void encode_block(const BlockFormat& format, DType from, const void* elements, size_t count, void* block, BlockCounts& counts);
void encode_block_reference(const BlockFormat& format, DType from, const void* elements, size_t count, void* block,
                            BlockCounts& counts);

// Elements [first, first + count) of a block: whole groups, but that the last may be the block's last. A block may be made and
// read part by part, also by several threads. Where a part is meant, `elements` and `sums` are those of the part.
struct BlockPart {
  size_t first = 0, count = 0;
};
void encode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from, const void* elements,
                 void* block, BlockCounts& counts);
void decode_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                 void* elements, BlockCounts& counts);
void decode_add_part(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, void* sums);

// Whether these are the bytes of a block that encode_block could have written, up to what no decoder can tell. Callers check
// bytes from elsewhere with it before they decode them. Decoding other bytes stays inside its memory, but its values mean
// nothing.
bool is_block(const BlockFormat& format, const void* block, size_t bytes, size_t count);

// Into a narrower type: rounded to nearest even, and what is finite stays finite (counted as saturated) unless format.poison.
void decode_block(const BlockFormat& format, const void* block, size_t count, DType to, void* elements, BlockCounts& counts);
void decode_block_reference(const BlockFormat& format, const void* block, size_t count, DType to, void* elements,
                            BlockCounts& counts);
// sums[i] = sums[i] + decoded[i], in fp32; a NaN is the one positive quiet NaN, as in Reduction.
void decode_add_block(const BlockFormat& format, const void* block, size_t count, void* sums);
void decode_add_block_reference(const BlockFormat& format, const void* block, size_t count, void* sums);

// Replaces a finite value that is too large for a 16-bit type by the type's largest, or with poison by NaN. Infinities stay.
void bound_values(DType to, float* values, size_t count, bool poison, BlockCounts& counts);

}  // namespace unisono::kernels

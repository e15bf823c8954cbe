// The scalar reference for blocks. It defines which bytes the SIMD kernels must write. It processes one element at a time.
#include "base/check.h"
#include "kernels/blocks_group.h"
#include "kernels/dispatch.h"

namespace unisono::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are");

void put_code(const BlockLayout& layout, std::byte* block, size_t i, uint32_t code) {
  for (const auto& plane : layout.planes) {
    if (plane.width == 0) break;
    const size_t bit = i * plane.width;
    const uint32_t part = code >> plane.shift & ((1u << plane.width) - 1);
    auto& byte = block[plane.offset + bit / 8];
    if (bit % 8 == 0) byte = {};
    byte |= static_cast<std::byte>(part << bit % 8);
  }
}

uint32_t code_at(const BlockLayout& layout, const std::byte* block, size_t i) {
  uint32_t code = 0;
  for (const auto& plane : layout.planes) {
    if (plane.width == 0) break;
    const size_t bit = i * plane.width;
    const uint32_t part = static_cast<uint32_t>(block[plane.offset + bit / 8]) >> bit % 8 & ((1u << plane.width) - 1);
    code |= part << plane.shift;
  }
  return code;
}

float element(DType type, const void* elements, size_t i) {
  const auto* at = static_cast<const std::byte*>(elements) + i * element_bytes(type);
  float value = 0;
  if (type == DType::f32) std::memcpy(&value, at, sizeof(value));
  else convert_reference(DType::f32, &value, type, at, 1);
  return value;
}

void set_element(DType type, void* elements, size_t i, float value) {
  auto* at = static_cast<std::byte*>(elements) + i * element_bytes(type);
  if (type == DType::f32) std::memcpy(at, &value, sizeof(value));
  else convert_reference(type, at, DType::f32, &value, 1);
}

// Returns the bits of a number in the given type. The number must be exact in this type, or NaN.
uint32_t bits_of(Metadata type, float value) {
  const bool nan = std::isnan(value);
  const auto bits = std::bit_cast<uint32_t>(value);
  if (type == Metadata::f32) return nan ? 0x7FC00000 : bits;
  if (type == Metadata::bf16) return nan ? 0x7FC0 : bits >> 16;
  if (nan) return 0x7E00;
  const float magnitude = std::fabs(value);
  const uint32_t subnormal = static_cast<uint32_t>(magnitude * 0x1p24f), normal = ((bits & 0x7FFFFFFF) >> 13) - (112u << 10);
  return (bits >> 31) << 15 | (magnitude < 0x1p-14f ? subnormal : normal);
}

void store_number(Metadata type, float value, std::byte* at) {
  const uint32_t bits = bits_of(type, value);
  if (type == Metadata::f32) std::memcpy(at, &bits, 4);
  else std::memcpy(at, &bits, 2);
}

float load_number(Metadata type, const std::byte* at) {
  return element(type == Metadata::f32 ? DType::f32 : type == Metadata::f16 ? DType::f16 : DType::bf16, at, 0);
}

// Copies the values to `clamped`, where values that are too large are limited. Returns false if the group must become NaN.
bool clamp_values(const BlockFormat& format, const float* values, uint32_t size, float* clamped, BlockCounts& counts) {
  const float limit = largest(format.metadata);
  uint64_t saturated = 0;
  for (uint32_t i = 0; i < size; ++i) {
    const bool too_large = std::fabs(values[i]) > limit;
    if (!std::isfinite(values[i]) || (too_large && format.poison)) return false;
    clamped[i] = too_large ? std::copysign(limit, values[i]) : values[i];
    saturated += too_large;
  }
  counts.saturated += saturated;
  return true;
}

void reserve_spikes(const BlockFormat& format, const float* values, uint32_t size, GroupHeader& header) {
  header.low_at = header.high_at = 0;
  for (uint32_t i = 1; i < size; ++i) {
    if (comparable(values[i]) < comparable(values[header.low_at])) header.low_at = i;
    if (comparable(values[i]) > comparable(values[header.high_at])) header.high_at = i;
  }
  header.low = rounded(format.metadata, comparable(values[header.low_at]), Rounding::near);
  header.high = rounded(format.metadata, comparable(values[header.high_at]), Rounding::near);
}

float decoded(const GroupHeader& header, uint32_t i, uint32_t code) {
  if (header.poisoned()) return quiet_nan;
  if (i == header.high_at) return header.high;
  if (i == header.low_at) return header.low;
  return std::fma(static_cast<float>(code), header.scale, header.minimum);
}

template <typename Take>
void decode_each(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* bytes, Take take) {
  const auto* const block = static_cast<const std::byte*>(bytes);
  for (size_t first = 0; first < part.count; first += format.group) {
    const size_t at = part.first + first;
    const auto header = load_header(format, layout, at / format.group, block);
    const auto size = static_cast<uint32_t>(std::min<size_t>(format.group, part.count - first));
    for (uint32_t i = 0; i < size; ++i) take(first + i, decoded(header, i, code_at(layout, block, at + i)));
  }
}

bool is_zero(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == std::byte{}; });
}

// Calls `of` for each 8 bytes of the part, as a little-endian word. The last word is filled up with zeros. Returns the bitwise
// or of the results.
template <typename Of>
uint64_t any_bits(const std::byte* part, size_t bytes, Of of) {
  uint64_t any = 0, word = 0;
  for (; bytes >= sizeof(word); part += sizeof(word), bytes -= sizeof(word)) {
    std::memcpy(&word, part, sizeof(word));
    any |= of(word);
  }
  word = 0;
  std::memcpy(&word, part, bytes);
  return any | of(word);
}

// Tests the bits of numbers. The numbers need not be converted, and the result does not depend on the processor's
// floating-point modes.
template <typename Bits, Bits infinity>
struct NumberBits {
  static constexpr Bits sign = static_cast<Bits>(1u << (8 * sizeof(Bits) - 1)), magnitude = sign - 1;
  static constexpr uint64_t each = sizeof(Bits) == 2 ? 0x0001000100010001 : 0x0000000100000001,
                            each_first = sizeof(Bits) == 2 ? 0x0000000100000001 : 1;

  static Bits at(const std::byte* part, size_t i) {
    Bits bits;
    std::memcpy(&bits, part + i * sizeof(Bits), sizeof(Bits));
    return bits;
  }
  static bool is_nan(Bits bits) { return (bits & magnitude) > infinity; }
  static bool is_finite(Bits bits) { return (bits & magnitude) < infinity; }
  static bool is_scale(Bits bits) { return bits < infinity || bits == sign; }  // finite and not negative
  // Returns whether all numbers are finite. With `scales`, the first number of each pair must also have no sign bit. The test
  // takes several numbers at a time: if `sign - infinity` is added, the sign bit becomes set for every NaN and every infinity.
  static bool all_finite(const std::byte* pairs, size_t bytes, bool scales) {
    const uint64_t signs = scales ? each_first * sign : 0;
    const auto found = [&](uint64_t word) { return ((word & each * magnitude) + each * (sign - infinity)) | (word & signs); };
    return (any_bits(pairs, bytes, found) & each * sign) == 0;
  }
};

// Returns whether all numbers of a block are valid. First, a fast test checks whether all numbers are finite, which is nearly
// always true. If it fails, groups are checked one by one.
template <typename Number>
bool are_numbers(const BlockFormat& format, const BlockLayout& layout, size_t groups, const std::byte* block) {
  const std::byte *const scales = block + layout.scales, *const spikes = block + layout.spikes;
  const size_t bytes = layout.spikes - layout.scales;
  if (Number::all_finite(scales, bytes, true) && (!format.spikes || Number::all_finite(spikes, bytes, false))) return true;
  for (size_t i = 0; i < 2 * groups; i += 2) {
    const auto scale = Number::at(scales, i);
    if (Number::is_nan(scale)) continue;
    if (!Number::is_scale(scale) || !Number::is_finite(Number::at(scales, i + 1))) return false;
    if (format.spikes && !(Number::is_finite(Number::at(spikes, i)) && Number::is_finite(Number::at(spikes, i + 1))))
      return false;
  }
  return true;
}

bool are_spike_indices_valid(const BlockFormat& format, const BlockLayout& layout, size_t groups, const std::byte* block) {
  const std::byte* const spike_indices = block + layout.spike_indices;
  // `group` is a power of two, so a valid index has none of these bits.
  const uint64_t beyond = uint64_t{0x0101010101010101} * (0xFFu & ~(format.group - 1u));
  if ((any_bits(spike_indices, 2 * groups, [](uint64_t word) { return word; }) & beyond) != 0) return false;
  const size_t last = layout.count - (groups - 1) * format.group;  // number of elements in the last group
  return static_cast<size_t>(spike_indices[2 * groups - 2]) < last && static_cast<size_t>(spike_indices[2 * groups - 1]) < last;
}

}  // namespace

bool BlockFormat::valid() const {
  return bits >= 2 && bits <= 8 && (group == 32 || group == 64 || group == 128 || group == 256) && metadata <= Metadata::f32;
}

BlockLayout layout_of(const BlockFormat& format, size_t count) {
  UNISONO_CHECK(format.valid());
  BlockLayout layout;
  const size_t eighths = (count + 7) / 8, groups = (count + format.group - 1) / format.group,
               pair = 2 * metadata_bytes(format.metadata);
  size_t at = 0, plane = 0;
  uint8_t shift = 0;
  for (uint8_t width = 8; width > 0; width /= 2) {
    if ((format.bits & width) == 0) continue;
    layout.planes[plane++] = {width, shift, at};
    at += eighths * width;
    shift = static_cast<uint8_t>(shift + width);
  }
  layout.padding = at;
  layout.scales = (at + 3) / 4 * 4;
  layout.spikes = layout.scales + groups * pair;
  layout.spike_indices = layout.spikes + (format.spikes ? groups * pair : 0);
  layout.bytes = layout.spike_indices + (format.spikes ? groups * 2 : 0);
  layout.count = count;
  return layout;
}

void store_header(const BlockFormat& format, const BlockLayout& layout, size_t group, const GroupHeader& header,
                  std::byte* block) {
  const size_t z = metadata_bytes(format.metadata);
  store_number(format.metadata, header.scale, block + layout.scales + 2 * group * z);
  store_number(format.metadata, header.minimum, block + layout.scales + (2 * group + 1) * z);
  if (!format.spikes) return;
  store_number(format.metadata, header.low, block + layout.spikes + 2 * group * z);
  store_number(format.metadata, header.high, block + layout.spikes + (2 * group + 1) * z);
  block[layout.spike_indices + 2 * group] = static_cast<std::byte>(header.low_at);
  block[layout.spike_indices + 2 * group + 1] = static_cast<std::byte>(header.high_at);
}

GroupHeader load_header(const BlockFormat& format, const BlockLayout& layout, size_t group, const std::byte* block) {
  const size_t z = metadata_bytes(format.metadata);
  const auto number = [&](size_t part, size_t i) { return load_number(format.metadata, block + part + (2 * group + i) * z); };
  GroupHeader header{.scale = number(layout.scales, 0), .minimum = number(layout.scales, 1)};
  if (!format.spikes) return header;
  header.low = number(layout.spikes, 0), header.high = number(layout.spikes, 1);
  header.low_at = static_cast<uint32_t>(block[layout.spike_indices + 2 * group]);
  header.high_at = static_cast<uint32_t>(block[layout.spike_indices + 2 * group + 1]);
  return header;
}

// A compiler may fuse a product and the sum that uses it to an fma. This function has no such product, so its results do not
// depend on the compiler.
void encode_group(const BlockFormat& format, const float* values, uint32_t size, GroupHeader& header, uint8_t* codes,
                  BlockCounts& counts) {
  float clamped[group_max] = {};
  header = {};
  std::fill_n(codes, size, uint8_t{0});
  if (!clamp_values(format, values, size, clamped, counts)) {
    ++counts.nonfinite_groups;
    header.scale = header.minimum = quiet_nan;
    header.low_at = header.high_at = 0;
    return;
  }
  if (format.spikes) reserve_spikes(format, clamped, size, header);
  float low = 0, high = 0;
  bool any = false;
  for (uint32_t i = 0; i < size; ++i) {
    if (header.is_spike(i)) continue;
    const float value = comparable(clamped[i]);
    low = any ? std::min(low, value) : value;
    high = any ? std::max(high, value) : value;
    any = true;
  }
  if (!any) return;
  set_scale(format, low, high, header);
  if (header.scale == 0) return;
  const float inverse = 1 / header.scale, steps = static_cast<float>((1u << format.bits) - 1);
  for (uint32_t i = 0; i < size; ++i) {
    if (header.is_spike(i)) continue;
    const float t = (clamped[i] - header.minimum) * inverse;
    codes[i] = static_cast<uint8_t>(std::nearbyint(std::clamp(t, 0.0f, steps)));
  }
}

void encode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, DType from,
                           const void* elements, void* bytes, BlockCounts& counts) {
  auto* const block = static_cast<std::byte*>(bytes);
  if (layout.count == 0) return;
  for (size_t first = 0; first < part.count; first += format.group) {
    const size_t at = part.first + first;
    const auto size = static_cast<uint32_t>(std::min<size_t>(format.group, part.count - first));
    float values[group_max];
    uint8_t codes[group_max];
    GroupHeader header;
    for (uint32_t i = 0; i < size; ++i) values[i] = element(from, elements, first + i);
    encode_group(format, values, size, header, codes, counts);
    for (uint32_t i = 0; i < (size + 7) / 8 * 8; ++i) put_code(layout, block, at + i, i < size ? codes[i] : 0);
    store_header(format, layout, at / format.group, header, block);
  }
  if (part.first + part.count == layout.count) std::memset(block + layout.padding, 0, layout.scales - layout.padding);
}

void encode_block_reference(const BlockFormat& format, DType from, const void* elements, size_t count, void* block,
                            BlockCounts& counts) {
  encode_part_reference(format, layout_of(format, count), {0, count}, from, elements, block, counts);
}

void bound_values(DType to, float* values, size_t count, bool poison, BlockCounts& counts) {
  // Values of at least this magnitude would be rounded to more than the largest number of the type.
  const float largest_of_type = to == DType::f16 ? 65504.0f : 0x1.FEp127f, limit = to == DType::f16 ? 65520.0f : 0x1.FFp127f;
  for (size_t i = 0; i < count; ++i) {
    if (!(std::fabs(values[i]) >= limit) || std::isinf(values[i])) continue;
    if (!poison) ++counts.saturated;
    values[i] = poison ? quiet_nan : std::copysign(largest_of_type, values[i]);
  }
}

void decode_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block, DType to,
                           void* elements, BlockCounts& counts) {
  decode_each(format, layout, part, block, [&](size_t i, float value) {
    if (to != DType::f32) bound_values(to, &value, 1, format.poison, counts);
    set_element(to, elements, i, value);
  });
}

void decode_block_reference(const BlockFormat& format, const void* block, size_t count, DType to, void* elements,
                            BlockCounts& counts) {
  decode_part_reference(format, layout_of(format, count), {0, count}, block, to, elements, counts);
}

void decode_add_part_reference(const BlockFormat& format, const BlockLayout& layout, BlockPart part, const void* block,
                               void* sums) {
  decode_each(format, layout, part, block, [&](size_t i, float value) {
    const float sum = element(DType::f32, sums, i) + value;
    set_element(DType::f32, sums, i, std::isnan(sum) ? quiet_nan : sum);
  });
}

void decode_add_block_reference(const BlockFormat& format, const void* block, size_t count, void* sums) {
  decode_add_part_reference(format, layout_of(format, count), {0, count}, block, sums);
}

bool is_block(const BlockFormat& format, const void* bytes, size_t size, size_t count) {
  const auto layout = layout_of(format, count);
  if (size != layout.bytes) return false;
  if (count == 0) return true;
  const auto* const block = static_cast<const std::byte*>(bytes);
  if (!is_zero(block + layout.padding, block + layout.scales)) return false;
  for (size_t i = count; i < (count + 7) / 8 * 8; ++i) {
    if (code_at(layout, block, i) != 0) return false;
  }
  const size_t groups = (count + format.group - 1) / format.group;
  if (format.spikes && !are_spike_indices_valid(format, layout, groups, block)) return false;
  switch (format.metadata) {
    case Metadata::f16: return are_numbers<NumberBits<uint16_t, 0x7C00>>(format, layout, groups, block);
    case Metadata::bf16: return are_numbers<NumberBits<uint16_t, 0x7F80>>(format, layout, groups, block);
    default: return are_numbers<NumberBits<uint32_t, 0x7F800000>>(format, layout, groups, block);
  }
}

}  // namespace unisono::kernels

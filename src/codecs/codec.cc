#include "codecs/codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "codecs/group_format.h"
#include "kernels/dispatch.h"

namespace unisono {
namespace {

using Kind = StepCodec::Kind;
using kernels::BlockCounts;
using kernels::BlockLayout;
using kernels::Metadata;

// A codec processes this many elements in one pass. The number is a multiple of every group size, and the sums and codes of one
// pass fit into the first-level cache.
constexpr size_t tile = part_unit;

// The fields of the header are: version, bits, log2 of the group size, flags (metadata, spikes, GroupFormat::mark), and the
// number of elements.
using Header = std::array<uint8_t, quantized_header_bytes>;
constexpr uint8_t header_version = 1, metadata_flags = 3, spikes_flag = 4;

Header header_of(const WireCodec& codec, size_t count) {
  const auto& f = codec.block;
  Header header{header_version, f.bits, static_cast<uint8_t>(std::countr_zero(f.group)),
                static_cast<uint8_t>(static_cast<uint8_t>(f.metadata) | (f.spikes ? spikes_flag : 0) |
                                     find_group_format(codec.kind)->mark)};
  for (size_t i = 0; i < 4; ++i) header[4 + i] = static_cast<uint8_t>(count >> 8 * i);
  return header;
}

// Returns the group format that has the mark in this header, or null if this build has no such format.
const GroupFormat* format_of(const Header& header) {
  for (const auto& format : group_formats()) {
    if (format.mark == (header[3] & ~(metadata_flags | spikes_flag))) return &format;
  }
  return nullptr;
}

kernels::BlockFormat block_of(const Header& header) {
  return {.bits = header[1],
          .group = static_cast<uint16_t>(header[2] < 16 ? 1u << header[2] : 0),
          .metadata = static_cast<Metadata>(header[3] & metadata_flags),
          .spikes = (header[3] & spikes_flag) != 0};
}

uint32_t count_of(const Header& header) {
  uint32_t count = 0;
  for (size_t i = 0; i < 4; ++i) count |= uint32_t{header[4 + i]} << 8 * i;
  return count;
}

// Returns why this build cannot read the message, or an empty text if it can.
std::string why_unreadable(const Header& header) {
  if (header[0] != header_version) return concat("blocks of version ", header[0]);
  const auto* const format = format_of(header);
  if (format == nullptr || !format->is_valid(block_of(header))) return "blocks of an unknown kind";
  return {};
}

std::string text_of(const Header& header) {
  const auto reason = why_unreadable(header);
  return reason.empty() ? concat(format_of(header)->text(block_of(header)), ", ", count_of(header), " elements") : reason;
}

const std::byte* at(const void* elements, DType type, size_t i) {
  return static_cast<const std::byte*>(elements) + i * element_bytes(type);
}
std::byte* at(void* elements, DType type, size_t i) { return static_cast<std::byte*>(elements) + i * element_bytes(type); }

void store(DType type, void* elements, const float* values, size_t count, bool poison, BlockCounts& counts) {
  if (type == DType::f32) std::memcpy(elements, values, count * sizeof(float));
  else narrow(type, elements, values, count, poison, counts);
}

// Computes sums += values.
void add(float* sums, const float* values, size_t count) {
  const void* const sources[] = {sums, values};
  kernels::reduce({.sources = sources, .destination = sums, .count = count});
}

// Writes (exact - received)·scale to `error`, or adds it there if `adds` is true. The inner loop has a fixed length, so that
// compilers can vectorise it.
template <bool adds>
void write_error(float* __restrict error, const float* __restrict exact, const float* __restrict received, size_t count,
                 float scale = 1) {
  constexpr size_t row = 16;
  size_t i = 0;
  for (; i + row <= count; i += row) {
    for (size_t j = i; j < i + row; ++j) error[j] = (exact[j] - received[j]) * scale + (adds ? error[j] : 0.0f);
  }
  for (; i < count; ++i) error[i] = (exact[i] - received[i]) * scale + (adds ? error[i] : 0.0f);
}

void write_error(ErrorUse use, float* error, const float* exact, const float* received, size_t count) {
  if (use == ErrorUse::added) write_error<true>(error, exact, received, count);
  else write_error<false>(error, exact, received, count);
}

// Returns elements + carried in fp32. If `carried` is null, it stands for zeros. The sum is written to `copy`. But if
// `elements` are fp32 and nothing is added, the function returns `elements`.
const float* exact_elements(DType type, const void* elements, const float* carried, size_t count, float* copy) {
  if (type == DType::f32 && carried == nullptr) return static_cast<const float*>(elements);
  if (type != DType::f32) elements = widened(type, elements, count, copy);
  if (carried == nullptr) return copy;
  const void* const sources[] = {elements, carried};
  kernels::reduce({.sources = sources, .destination = copy, .count = count});
  return copy;
}

// Encodes and decodes one message, tile by tile.
class Message {
 public:
  Message(const WireCodec& codec, size_t count) : codec_(codec) {
    if (codec.quantizes()) format_ = find_group_format(codec.kind), layout_ = format_->layout(codec.block, count);
  }
  void encode(std::byte* message, size_t first, DType dtype, const void* elements, size_t count, BlockCounts& counts) const {
    if (codec_.quantizes())
      return format_->encode(codec_.block, layout_, {first, count}, dtype, elements, message + codec_.header_bytes(), counts);
    auto* const to = at(message, codec_.dtype, first);
    if (dtype == codec_.dtype) return static_cast<void>(std::memcpy(to, elements, count * element_bytes(dtype)));
    UNISONO_CHECK(dtype == DType::f32);
    alignas(64) float values[tile];
    narrow(codec_.dtype, to, widened(dtype, elements, count, values), count, codec_.block.poison, counts);
  }
  void decode(const std::byte* message, size_t first, DType dtype, void* elements, size_t count, BlockCounts& counts) const {
    if (codec_.quantizes())
      return format_->decode(codec_.block, layout_, {first, count}, message + codec_.header_bytes(), dtype, elements, counts);
    const auto* const from = at(message, codec_.dtype, first);
    if (dtype == codec_.dtype) return static_cast<void>(std::memcpy(elements, from, count * element_bytes(dtype)));
    if (dtype == DType::f32) return kernels::convert(DType::f32, elements, codec_.dtype, from, count);
    alignas(64) float values[tile];
    narrow(dtype, elements, widened(codec_.dtype, from, count, values), count, codec_.block.poison, counts);
  }
  void decode_add(const std::byte* message, size_t first, float* sums, size_t count) const {
    if (codec_.quantizes())
      return format_->decode_add(codec_.block, layout_, {first, count}, message + codec_.header_bytes(), sums);
    alignas(64) float values[tile];
    add(sums, widened(codec_.dtype, at(message, codec_.dtype, first), count, values), count);
  }

 private:
  const WireCodec& codec_;
  const GroupFormat* format_ = nullptr;
  BlockLayout layout_;
};

void start_message(const WireCodec& codec, size_t count, std::byte* message) {
  if (codec.header_bytes() == 0 || count == 0) return;
  const auto header = header_of(codec, count);
  std::memcpy(message, header.data(), header.size());
}

// Memory for the encoded form of one tile. It is large enough for every codec, because no codec needs more bytes than fp32
// elements do.
struct Scratch {
  alignas(64) std::byte bytes[tile * sizeof(float)];
};

// Encodes and decodes `values` in place, so that they become the values that a receiver would get.
void pass_through(const WireCodec& codec, float* values, size_t count, Scratch& scratch, BlockCounts& counts) {
  if (codec.is_plain()) return;
  const Message message(codec, count);
  message.encode(scratch.bytes, 0, DType::f32, values, count, counts);
  message.decode(scratch.bytes, 0, DType::f32, values, count, counts);
}

// Writes this rank's own elements to `values`. They have the values that the other ranks decode. Also updates task.error.
void own_values(const FoldTask& task, size_t first, size_t count, float* values, Scratch& scratch, BlockCounts& counts) {
  alignas(64) float copy[tile];
  float* const error = task.error == nullptr ? nullptr : task.error + first;
  const float* const exact =
      exact_elements(task.dtype, at(task.own, task.dtype, first), task.use == ErrorUse::carried ? error : nullptr, count, copy);
  std::memcpy(values, exact, count * sizeof(float));
  if (task.own_before != nullptr) pass_through(*task.own_before, values, count, scratch, counts);
  if (!task.own_exact) pass_through(task.from, values, count, scratch, counts);
  if (error != nullptr) write_error(task.use, error, exact, values, count);
}

size_t end_of(TaskPart part, size_t count) {
  UNISONO_CHECK(part.first % part_unit == 0);
  return part.first + std::min(part.count, count - std::min(part.first, count));
}

}  // namespace

const float* widened(DType type, const void* elements, size_t count, float* copy) {
  if (type == DType::f32) std::memcpy(copy, elements, count * sizeof(float));
  else kernels::convert(DType::f32, copy, type, elements, count);
  return copy;
}

size_t WireCodec::message_bytes(size_t count) const {
  if (count == 0) return 0;
  return quantizes() ? header_bytes() + find_group_format(kind)->layout(block, count).bytes : count * element_bytes(dtype);
}

std::string why_invalid(const StepCodec& step) {
  if (!is_codec(static_cast<size_t>(step.kind))) return concat("an unknown kind ", static_cast<int>(step.kind));
  if (!facts_of(step.kind).has_options) return {};
  if (step.bits < 2 || step.bits > 8) return concat(step.bits, " bits; needed: 2 to 8");
  if (step.group != 32 && step.group != 64 && step.group != 128 && step.group != 256)
    return concat("groups of ", step.group, "; needed: 32, 64, 128 or 256");
  if (step.metadata > StepCodec::Metadata::automatic || step.spikes > StepCodec::Spikes::automatic)
    return "unknown metadata or spikes";
  return {};
}

WireCodec wire_codec(const StepCodec& step, DType tensor, DType working, bool poison) {
  WireCodec codec{.kind = step.kind, .dtype = working, .block = {}};
  if (step.kind == Kind::f16) codec.dtype = DType::f16;
  if (step.kind == Kind::bf16) codec.dtype = DType::bf16;
  if (codec.quantizes()) codec.block = find_group_format(step.kind)->format_of(step, tensor);
  codec.block.poison = poison;
  return codec;
}

std::string to_string(const WireCodec& codec) {
  return codec.quantizes() ? find_group_format(codec.kind)->text(codec.block) : name(codec.dtype);
}

void encode(const EncodeTask& task, BlockCounts& counts, TaskPart part) {
  const Message message(task.codec, task.count);
  if (part.first == 0) start_message(task.codec, task.count, task.message);
  const size_t end = end_of(part, task.count);
  alignas(64) float copy[tile], values[tile];
  Scratch scratch;
  // If the task needs only a quantised message, the whole part is encoded with one call. The kernel can then prefetch the next
  // tile.
  const size_t step =
      task.codec.quantizes() && task.before == nullptr && task.decoded == nullptr && task.error == nullptr ? end : tile;
  for (size_t first = part.first; first < end; first += step) {
    const size_t count = std::min(step, end - first);
    const void* elements = at(task.elements, task.dtype, first);
    DType dtype = task.dtype;
    float* const error = task.error == nullptr ? nullptr : task.error + first;
    const float* exact = nullptr;
    if (task.before != nullptr || error != nullptr) {
      elements = exact = exact_elements(dtype, elements, task.use == ErrorUse::carried ? error : nullptr, count, copy);
      dtype = DType::f32;
    }
    if (task.before != nullptr) {
      std::memcpy(values, exact, count * sizeof(float));
      pass_through(*task.before, values, count, scratch, counts);
      elements = values;
    }
    message.encode(task.message, first, dtype, elements, count, counts);
    if (error != nullptr) {
      message.decode(task.message, first, DType::f32, values, count, counts);
      write_error(task.use, error, exact, values, count);
    }
    if (task.decoded != nullptr)
      message.decode(task.message, first, task.dtype, at(task.decoded, task.dtype, first), count, counts);
  }
}

void decode(const DecodeTask& task, BlockCounts& counts, TaskPart part) {
  const Message message(task.codec, task.count);
  const size_t end = end_of(part, task.count);
  // A quantised part is decoded with one call. All other messages are decoded tile by tile, because their conversion may need a
  // buffer, which has the size of one tile.
  const size_t step = task.codec.quantizes() ? end : tile;
  for (size_t first = part.first; first < end; first += step) {
    message.decode(task.message, first, task.dtype, at(task.elements, task.dtype, first), std::min(step, end - first), counts);
  }
}

void fold(const FoldTask& task, BlockCounts& counts, TaskPart part) {
  const Message from(task.from, task.count);
  const WireCodec plain{.dtype = task.dtype, .block = {}};
  const WireCodec& to_codec = task.to != nullptr ? *task.to : plain;
  const Message to(to_codec, task.count);
  if (task.message != nullptr && part.first == 0) start_message(to_codec, task.count, task.message);
  const size_t end = end_of(part, task.count);
  alignas(64) float sums[tile], own[tile];
  Scratch scratch;
  // True if this rank's own elements are treated like a received message: a kernel encodes them, then decodes them and adds
  // them.
  const bool own_as_message = task.from.quantizes() && !task.own_exact && task.own_before == nullptr && task.error == nullptr;
  for (size_t first = part.first; first < end; first += tile) {
    const size_t count = std::min(tile, end - first);
    bool begun = false;
    for (const void* contribution : task.messages) {
      const auto* const bytes = static_cast<const std::byte*>(contribution);
      float* const values = begun ? own : sums;
      if (bytes == nullptr && own_as_message) {
        const Message mine(task.from, count);
        mine.encode(scratch.bytes, 0, task.dtype, at(task.own, task.dtype, first), count, counts);
        if (begun) mine.decode_add(scratch.bytes, 0, sums, count);
        else mine.decode(scratch.bytes, 0, DType::f32, sums, count, counts);
      } else if (bytes == nullptr) {
        own_values(task, first, count, values, scratch, counts);
        if (begun) add(sums, values, count);
      } else if (begun) {
        from.decode_add(bytes, first, sums, count);
      } else {
        from.decode(bytes, first, DType::f32, sums, count, counts);
      }
      begun = true;
    }
    const void* const sources[] = {sums};
    if (task.divisor > 1) kernels::reduce({.sources = sources, .destination = sums, .count = count, .divisor = task.divisor});
    if (task.to == nullptr) {
      if (task.output != nullptr)
        store(task.dtype, at(task.output, task.dtype, first), sums, count, task.from.block.poison, counts);
      continue;
    }
    // If task.message is null, the caller wants only the decoded sum. In this case, each tile is encoded as a message of its
    // own, `alone`.
    const Message alone(to_codec, count);
    const bool kept = task.message != nullptr;
    std::byte* const message = kept ? task.message : scratch.bytes;
    const size_t offset = kept ? first : 0;
    (kept ? to : alone).encode(message, offset, DType::f32, sums, count, counts);
    if (task.error != nullptr && task.sum_error) {
      (kept ? to : alone).decode(message, offset, DType::f32, own, count, counts);
      write_error<true>(task.error + first, sums, own, count, static_cast<float>(task.divisor));
    }
    if (task.output != nullptr)
      (kept ? to : alone).decode(message, offset, task.dtype, at(task.output, task.dtype, first), count, counts);
  }
}

Result<MessageHeader> read_message_header(std::span<const std::byte> message) {
  Header header;
  if (message.size() < header.size())
    return Status(Code::corrupt, concat("a block of ", message.size(), " bytes, shorter than its header"));
  std::memcpy(header.data(), message.data(), header.size());
  if (const auto reason = why_unreadable(header); !reason.empty()) return Status(Code::corrupt, reason);
  return MessageHeader{.codec = {.kind = format_of(header)->kind, .block = block_of(header)}, .count = count_of(header)};
}

void write_message_header(const MessageHeader& header, std::span<std::byte, quantized_header_bytes> to) {
  UNISONO_CHECK(header.codec.quantizes());
  const auto bytes = header_of(header.codec, header.count);
  std::memcpy(to.data(), bytes.data(), bytes.size());
}

static Status check_header(const WireCodec& codec, std::span<const std::byte> message, size_t count) {
  const auto expected = header_of(codec, count);
  if (message.size() < expected.size())
    return {Code::corrupt, concat("a block of ", message.size(), " bytes, shorter than its header")};
  if (std::memcmp(message.data(), expected.data(), expected.size()) == 0) return {};
  return {Code::invalid, concat("sends ", describe_message(static_cast<uint8_t>(codec.kind), message), " instead of ",
                                to_string(codec), ", ", count, " elements")};
}

Status check_message(const WireCodec& codec, std::span<const std::byte> message, size_t count) {
  if (!codec.quantizes()) {
    if (message.size() == codec.message_bytes(count)) return {};
    return {Code::corrupt, concat(message.size(), " bytes for ", count, " elements of ", name(codec.dtype))};
  }
  if (count == 0 && message.empty()) return {};
  if (codec.sends_header) {
    if (auto status = check_header(codec, message, count); !status.ok()) return status;
  }
  const auto block = message.subspan(codec.header_bytes());
  if (find_group_format(codec.kind)->is_block(codec.block, block.data(), block.size(), count)) return {};
  return {Code::corrupt, concat("a damaged block of ", count, " elements, ", message.size(), " bytes, ", to_string(codec))};
}

std::string describe_message(uint8_t kind, std::span<const std::byte> message) {
  if (!is_codec(kind)) return concat("elements of an unknown codec ", kind);
  if (!codec_table[kind].is_grouped) return std::string(codec_table[kind].name) + " elements";
  Header header;
  if (message.size() < header.size()) return std::string(codec_table[kind].name) + " elements";
  std::memcpy(header.data(), message.data(), header.size());
  return text_of(header);
}

void narrow(DType to, void* destination, const float* source, size_t count, bool poison, BlockCounts& counts) {
  alignas(64) float values[tile];
  for (size_t first = 0; first < count; first += tile) {
    const size_t part = std::min(tile, count - first);
    std::memcpy(values, source + first, part * sizeof(float));
    kernels::bound_values(to, values, part, poison, counts);
    kernels::convert(to, at(destination, to, first), DType::f32, values, part);
  }
}

}  // namespace unisono

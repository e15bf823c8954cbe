// Encodes the elements of one step of a collective operation into messages, decodes messages, and adds them up.
//
// A WireCodec is a StepCodec in which no option is left open. A message without elements has no bytes. A message of quantised
// elements begins with an eight-byte header (docs/reference/wire_format.md), unless the codec is set to send none. All other
// messages consist of elements only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kernels/blocks.h"
#include "unisono/codec.h"
#include "unisono/codec_facts.h"
#include "unisono/status.h"
#include "unisono/tensor.h"

namespace unisono {

struct WireCodec {
  StepCodec::Kind kind = StepCodec::Kind::plain;
  DType dtype = DType::f32;    // The type of the elements in the message. It is not used if the codec quantises.
  kernels::BlockFormat block;  // The format of quantised elements. Its field `poison` applies to every codec.
  // False: messages of quantised elements are blocks without a header. Ranges of lossy operations have none: their ranks have
  // agreed on codec and number of elements before, so a header would only take space in each datagram.
  bool sends_header = true;

  bool is_plain() const { return kind == StepCodec::Kind::plain; }
  // Returns true if elements are encoded in groups that share a scale.
  bool quantizes() const { return facts_of(kind).is_grouped; }
  // A caller may divide elements into several messages. If it does so at multiples of this number, the decoded values stay the
  // same.
  size_t unit() const { return quantizes() ? block.group : 1; }
  // Returns the number of bytes before the elements of a message that is not empty.
  size_t header_bytes() const;
  size_t message_bytes(size_t count) const;
  friend bool operator==(const WireCodec&, const WireCodec&) = default;
};

inline constexpr size_t quantized_header_bytes = 8;
inline size_t WireCodec::header_bytes() const { return quantizes() && sends_header ? quantized_header_bytes : 0; }

// Returns why the step of a caller is invalid, for example "9 bits; needed: 2 to 8". Returns an empty text if the step is
// valid.
std::string why_invalid(const StepCodec& step);

// Resolves all options of a step. `tensor` is the type of the caller's elements. `working` is the type in which sums are
// computed and plain messages are sent.
WireCodec wire_codec(const StepCodec& step, DType tensor, DType working, bool poison);
// Returns a text such as "f32" or "int4:group=128,metadata=bf16".
std::string to_string(const WireCodec& codec);

// A part of a task: the elements [first, first + count). Each call does one part. `first` must be a multiple of part_unit.
// Several threads may do different parts of the same task, if each has its own BlockCounts.
struct TaskPart {
  size_t first = 0, count = SIZE_MAX;
};
inline constexpr size_t part_unit = 2048;

// How a task writes `error`. The difference is the elements minus the values that a receiver decodes.
enum class ErrorUse : uint8_t {
  added,    // the difference is added to `error`
  set,      // the difference overwrites `error`
  carried,  // error feedback: `error` is first added to this rank's elements, then overwritten with the difference
};

struct EncodeTask {
  const WireCodec& codec;
  DType dtype = DType::f32;  // f32, f16 or bf16
  const void* elements = nullptr;
  size_t count = 0;
  std::byte* message = nullptr;       // receives message_bytes(count) bytes
  const WireCodec* before = nullptr;  // If this is not null, elements are first encoded and decoded with this codec.
  void* decoded = nullptr;  // If this is not null, it receives the values that a receiver decodes. It may equal `elements`.
  // If this is not null, elements minus decoded elements are written to it, in the way that `use` says.
  float* error = nullptr;
  ErrorUse use = ErrorUse::added;
};
void encode(const EncodeTask& task, kernels::BlockCounts& counts, TaskPart part = {});

struct DecodeTask {
  const WireCodec& codec;
  const std::byte* message = nullptr;
  DType dtype = DType::f32;
  void* elements = nullptr;
  size_t count = 0;
};
void decode(const DecodeTask& task, kernels::BlockCounts& counts, TaskPart part = {});

// Decodes messages, adds them up in fp32 in the given order, and divides the sum. If `to` is set, also encodes the sum for the
// other ranks. This rank then uses the decoded form of the encoded sum, too, so that all ranks get equal values.
struct FoldTask {
  const WireCodec& from;
  // There are at least two messages, and each has `count` elements. A null entry stands for this rank, whose elements are
  // in `own`.
  std::span<const void* const> messages;
  const void* own = nullptr;
  const WireCodec* own_before = nullptr;  // If this is not null, own elements are first encoded and decoded with this codec.
  bool own_exact = false;    // True: own elements are added unchanged. False: they are first encoded and decoded with `from`.
  DType dtype = DType::f32;  // the type of `own` and of `output`
  size_t count = 0;
  uint32_t divisor = 1;
  const WireCodec* to = nullptr;  // The codec of the sum. If it is null, the sum is not encoded.
  std::byte* message = nullptr;   // If this is not null, the sum encoded with `to` is written to it.
  // If this is not null, the decoded sum is written to it. If `to` is null, it is the sum itself. It may equal `own`.
  void* output = nullptr;
  // If this is not null, own elements minus their decoded form are written to it, in the way that `use` says.
  float* error = nullptr;
  ErrorUse use = ErrorUse::added;  // This must be `added` if no entry of `messages` is null.
  bool sum_error = true;           // True: (sum - decoded sum) times `divisor` is added to `error`.
};
void fold(const FoldTask& task, kernels::BlockCounts& counts, TaskPart part = {});

// The decoded header of a message of quantised elements. Programs that read messages from files need it. In a collective
// operation, receivers know the codec already.
struct MessageHeader {
  WireCodec codec;
  uint32_t count = 0;  // number of elements
};
// Returns corrupt if the message is shorter than a header, has another version, or does not describe a codec that quantises.
Result<MessageHeader> read_message_header(std::span<const std::byte> message);
// header.codec.quantizes() must be true.
void write_message_header(const MessageHeader& header, std::span<std::byte, quantized_header_bytes> to);

// Checks that `message` holds `count` elements that were encoded with `codec`. Returns corrupt if the message is damaged.
// Returns invalid if the message has a header that names another codec; the text names both codecs.
Status check_message(const WireCodec& codec, std::span<const std::byte> message, size_t count);
// Describes how the sender encoded the message. The result is used in the texts of errors. `kind` comes from the frame of the
// message.
std::string describe_message(uint8_t kind, std::span<const std::byte> message);

// Converts f32, f16 or bf16 elements to fp32 and writes them to `copy`. The elements can have any alignment. Returns `copy`.
const float* widened(DType type, const void* elements, size_t count, float* copy);
// Converts fp32 values to the type `to`. The results are rounded to the nearest value, ties to even. Finite values that are too
// large become the largest finite value; with `poison`, they become NaN. Source and destination must not overlap.
void narrow(DType to, void* destination, const float* source, size_t count, bool poison, kernels::BlockCounts& counts);

}  // namespace unisono

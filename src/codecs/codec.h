// Encodes the elements of one step of a collective into messages, decodes messages, and adds them up.
//
// A WireCodec is a StepCodec with nothing left to choose. A message of no elements has no bytes. Messages of quantised elements
// begin with eight bytes that say how they were made (docs/reference/wire_format.md); others are elements and nothing else.
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
  DType dtype = DType::f32;    // of the elements in the message; not of quantised ones
  kernels::BlockFormat block;  // of quantised ones; poison counts for all

  bool is_plain() const { return kind == StepCodec::Kind::plain; }
  // Elements in groups that share a scale: messages begin with a header.
  bool quantizes() const { return facts_of(kind).is_grouped; }
  // Messages that are cut here and there at multiples of so many elements hold the same together as one.
  size_t unit() const { return quantizes() ? block.group : 1; }
  size_t message_bytes(size_t count) const;
  friend bool operator==(const WireCodec&, const WireCodec&) = default;
};

inline constexpr size_t quantized_header_bytes = 8;

// Says why a caller's step is invalid, as "9 bits; needed: 2 to 8". Empty if the step is valid.
std::string fault_of(const StepCodec& step);

// tensor: what the caller has. working: what it is added in; the type of plain messages.
WireCodec wire_codec(const StepCodec& step, DType tensor, DType working, bool poison);
// "f32", "int4:group=128,metadata=bf16".
std::string to_string(const WireCodec& codec);

// A task may be done part by part, by several threads: elements [first, first + count), where first is a multiple of part_unit.
// Then each part has counts of its own.
struct TaskPart {
  size_t first = 0, count = SIZE_MAX;
};
inline constexpr size_t part_unit = 2048;

// How a task writes `error`: the difference between the elements and what a receiver decodes.
enum class ErrorUse : uint8_t {
  added,    // to what is there
  set,      // what is there is of no use
  carried,  // what is there is added to this rank's elements before all else: error feedback
};

struct EncodeTask {
  const WireCodec& codec;
  DType dtype = DType::f32;  // f32, f16 or bf16
  const void* elements = nullptr;
  size_t count = 0;
  std::byte* message = nullptr;       // message_bytes(count)
  const WireCodec* before = nullptr;  // not null: the elements go through this one first
  void* decoded = nullptr;            // null, or where a receiver's elements go; may be the elements themselves
  float* error = nullptr;             // null, or where it is written down what a receiver's elements lack
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

// The sum of messages, in fp32, in the order given: then divided, encoded for others, and decoded again for this rank, so that
// all have the same.
struct FoldTask {
  const WireCodec& from;
  std::span<const void* const>
      messages;  // at least two of `count` elements; null: this rank's own elements stand here, which were not sent
  const void* own = nullptr;
  const WireCodec* own_before = nullptr;  // not null: the own ones go through this one first
  bool own_exact = false;                 // the own ones are added as they are, not as they would have been sent
  DType dtype = DType::f32;               // of own and output
  size_t count = 0;
  uint32_t divisor = 1;
  const WireCodec* to = nullptr;   // null: the sum stays as it is
  std::byte* message = nullptr;    // null, or `to`'s message of the sum
  void* output = nullptr;          // null, or decoded from that, or without `to` the sum; may be `own`
  float* error = nullptr;          // null, or where it is written down what the own ones lack
  ErrorUse use = ErrorUse::added;  // another one only if the own ones were not sent
  bool sum_error = true;           // what the decoded sum lacks, times the divisor, is added to it
};
void fold(const FoldTask& task, kernels::BlockCounts& counts, TaskPart part = {});

// The first bytes of a message of quantised elements, decoded. Readers of files need them; receivers of a collective know the
// codec already.
struct MessageHeader {
  WireCodec codec;
  uint32_t count = 0;  // elements
};
// corrupt: the message is shorter than a header, has another version, or describes no codec of quantised elements.
Result<MessageHeader> read_message_header(std::span<const std::byte> message);
// codec must quantise.
void write_message_header(const MessageHeader& header, std::span<std::byte, quantized_header_bytes> to);

// Whether a message of so many elements can be decoded. invalid: it was made by another codec, both are named; corrupt: it was
// damaged.
Status check_message(const WireCodec& codec, std::span<const std::byte> message, size_t count);
// Describes for error texts how the sender encoded the message. `kind` comes from the message's frame.
std::string describe_message(uint8_t kind, std::span<const std::byte> message);

// fp32 values of f32, f16 or bf16 elements, which may stand at any address: `copy`.
const float* widened(DType type, const void* elements, size_t count, float* copy);
// To nearest even; what is finite stays finite, or with poison becomes NaN. Aliasing is not allowed.
void narrow(DType to, void* destination, const float* source, size_t count, bool poison, kernels::BlockCounts& counts);

}  // namespace unisono

// Files of encoded elements. A file holds messages in Unisono's wire format, each with up to 2^20 elements
// (docs/reference/wire_format.md, "Files").
//
// A message with quantised elements has a header, which states its codec and its length. Either the last message is shorter
// than the others, or an end mark follows it. So a reader notices if the end of the file is missing, and needs nothing but the
// file. Files of plain, f16 or bf16 elements have no headers: they hold only the elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cli/common/byte_stream.h"
#include "codecs/codec.h"

namespace unisono::cli {

// Number of elements in each message except the last. It is a multiple of every group size, so the encoding of a tensor does
// not change when the tensor is cut into messages.
inline constexpr size_t file_message_elements = 1u << 20;

// The total sizes of all messages in one file. The end mark is not counted.
struct MessageTally {
  uint64_t elements = 0;
  uint64_t header_bytes = 0;
  uint64_t block_bytes = 0;  // the encoded elements, without the headers
  uint64_t bytes() const { return header_bytes + block_bytes; }
  void add(const WireCodec& codec, size_t count);
};

// Returns the bytes that must follow the last message. There are none if the last message is shorter than
// file_message_elements, or if the messages have no headers.
std::vector<std::byte> end_mark(const WireCodec& codec, uint64_t elements);

class MessageReader {
 public:
  // If the file has no headers, `raw` is its codec. If the file has headers, `raw` is nullopt. `dtype` is the type of the
  // decoded elements.
  MessageReader(ByteSource& source, std::optional<WireCodec> raw, DType dtype, bool poison);

  // Decodes the next message into `elements`, which must have room for file_message_elements. Returns the number of elements,
  // or 0 at the end of the file. Returns Code::corrupt if the file is damaged, if its end is missing, or if it has another
  // format. The message gives the position and the reason.
  Result<size_t> next(std::span<std::byte> elements, kernels::BlockCounts& counts);
  // Returns the codec of the file. It is known after the first call of next(), even if the file has no messages, because the
  // end mark states the codec, too.
  const WireCodec& codec() const { return codec_; }
  const MessageTally& tally() const { return tally_; }

 private:
  Result<size_t> next_raw();
  Result<size_t> next_message();
  Result<std::optional<MessageHeader>> next_header();
  Status expect_end();
  Status corrupt(const std::string& what) const;

  ByteSource& source_;
  bool is_raw_;
  WireCodec codec_;
  DType dtype_;
  std::vector<std::byte> message_;
  MessageTally tally_;
  uint64_t number_ = 0;     // number of the current message; the first is 1
  uint64_t begins_at_ = 0;  // where in the file the current message begins, in bytes
  bool has_ended_ = false;
};

}  // namespace unisono::cli

// Files of messages: elements as Unisono sends them, one message per 2^20 elements, one behind the other
// (docs/reference/wire_format.md, "Files").
//
// Quantised messages say themselves how they were made and how long they are, and the last one is shorter than the others, so a
// reader needs no further information, and notices a cut. Plain, f16 and bf16 elements have no headers: such a file is its
// elements.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cli/common/byte_stream.h"
#include "codecs/codec.h"

namespace unisono::cli {

// A multiple of every group size, so that cutting a tensor here does not change its encoding.
inline constexpr size_t file_message_elements = 1u << 20;

// Counts the messages, but not the end mark.
struct MessageTally {
  uint64_t elements = 0;
  uint64_t header_bytes = 0;
  uint64_t block_bytes = 0;  // of messages without headers: all they are
  uint64_t bytes() const { return header_bytes + block_bytes; }
  void add(const WireCodec& codec, size_t count);
};

// If the last message has file_message_elements, or there is none: the bytes that say that no more come. Else nothing.
std::vector<std::byte> end_mark(const WireCodec& codec, uint64_t elements);

class MessageReader {
 public:
  // `raw`: of the file's elements, if it is one without headers. dtype: what the elements are wanted as.
  MessageReader(ByteSource& source, std::optional<WireCodec> raw, DType dtype, bool poison);

  // The next message's elements, at most file_message_elements, and their number; 0 at the end. corrupt: the file is damaged,
  // cut off or of another format; the position and the reason.
  Result<size_t> next(std::span<std::byte> elements, kernels::BlockCounts& counts);
  // The file's codec, known after the first next(). A file without messages has one too, in its end mark.
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
  uint64_t number_ = 0;     // of the message that is read, from 1
  uint64_t begins_at_ = 0;  // bytes before it
  bool has_ended_ = false;
};

}  // namespace unisono::cli

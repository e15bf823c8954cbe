// Reads files of messages. Everything is checked, because such a file may contain anything.
#include "cli/codec/codec_file.h"

#include <fmt/format.h>

#include <array>

#include "base/check.h"

namespace unisono::cli {
namespace {

using HeaderBytes = std::array<std::byte, quantized_header_bytes>;

bool same_blocks(const WireCodec& one, const WireCodec& other) {
  auto block = one.block;
  block.poison = other.block.poison;  // the reader chooses `poison`; the file does not store it
  return one.kind == other.kind && block == other.block;
}

}  // namespace

void MessageTally::add(const WireCodec& codec, size_t count) {
  const size_t header = codec.quantizes() && count > 0 ? quantized_header_bytes : 0;
  elements += count;
  header_bytes += header;
  block_bytes += codec.message_bytes(count) - header;
}

std::vector<std::byte> end_mark(const WireCodec& codec, uint64_t elements) {
  if (!codec.quantizes() || elements % file_message_elements != 0) return {};
  HeaderBytes header;
  write_message_header({.codec = codec, .count = 0}, header);
  return {header.begin(), header.end()};
}

MessageReader::MessageReader(ByteSource& source, std::optional<WireCodec> raw, DType dtype, bool poison)
    : source_(source),
      is_raw_(raw.has_value()),
      codec_(raw.value_or(WireCodec{.kind = StepCodec::Kind::quantize, .block = {}})),
      dtype_(dtype) {
  codec_.block.poison = poison;
}

Status MessageReader::corrupt(const std::string& what) const {
  return {Code::corrupt, fmt::format("{}: {}", source_.name(), what)};
}

Result<size_t> MessageReader::next(std::span<std::byte> elements, kernels::BlockCounts& counts) {
  if (has_ended_) return size_t{0};
  const auto count = is_raw_ ? next_raw() : next_message();
  if (!count.ok()) return count;
  tally_.add(codec_, *count);
  has_ended_ = *count < file_message_elements;
  UNISONO_CHECK(elements.size() >= *count * element_bytes(dtype_));
  unisono::decode({.codec = codec_, .message = message_.data(), .dtype = dtype_, .elements = elements.data(), .count = *count},
                  counts);
  return count;
}

Result<size_t> MessageReader::next_raw() {
  const auto bytes_each = element_bytes(codec_.dtype);
  message_.resize(file_message_elements * bytes_each);
  const auto got = source_.read(message_);
  if (!got.ok() || *got % bytes_each == 0) return got.ok() ? Result<size_t>(*got / bytes_each) : got;
  return corrupt(fmt::format("{} bytes, no multiple of the {} bytes of an element of {}", source_.taken(), bytes_each,
                             name(codec_.dtype)));
}

// Reads the header of the next message. Returns nullopt if it is the end mark.
Result<std::optional<MessageHeader>> MessageReader::next_header() {
  ++number_;
  begins_at_ = source_.taken();
  HeaderBytes bytes;
  const auto got = source_.read(bytes);
  if (!got.ok()) return got.status();
  if (*got == 0 && number_ == 1) return corrupt("empty, not even an end mark");
  if (*got == 0)
    return corrupt(
        fmt::format("cut off: ends after {} bytes, behind message {}, without the shorter message or the mark that ends a file",
                    begins_at_, number_ - 1));
  if (number_ == 1 && *got < bytes.size()) return corrupt(fmt::format("{} bytes, less than the header of a message", *got));
  if (*got < bytes.size())
    return corrupt(fmt::format("cut off: ends after {} bytes, inside the header of message {}", source_.taken(), number_));
  const auto header = read_message_header(bytes);
  if (!header.ok() && number_ == 1) {
    return corrupt(
        fmt::format("no file of quantised messages: begins with bytes {:02x} ({}); for plain, f16 and bf16 elements, which "
                    "have no headers, give --codec",
                    fmt::join(std::span(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size()), " "),
                    header.status().message()));
  }
  if (!header.ok())
    return corrupt(fmt::format("damaged: no header of a message at byte {}, where message {} should begin: {}", begins_at_,
                               number_, header.status().message()));
  if (number_ == 1) {
    const bool poison = codec_.block.poison;
    codec_ = header->codec;
    codec_.block.poison = poison;
  }
  if (!same_blocks(header->codec, codec_)) {
    return corrupt(fmt::format("damaged: message {}, at byte {}, is {}, those before it {}", number_, begins_at_,
                               to_string(header->codec), to_string(codec_)));
  }
  if (header->count > file_message_elements) {
    return corrupt(fmt::format("damaged: message {}, at byte {}, says that it has {} elements; at most {} can be", number_,
                               begins_at_, header->count, file_message_elements));
  }
  return header->count == 0 ? std::optional<MessageHeader>() : *header;
}

Result<size_t> MessageReader::next_message() {
  const auto header = next_header();
  if (!header.ok()) return header.status();
  const size_t count = *header ? (*header)->count : 0;
  message_.resize(codec_.message_bytes(count));
  if (count > 0) {
    const std::span message(message_);
    write_message_header(**header, message.first<quantized_header_bytes>());
    const auto got = source_.read(message.subspan(quantized_header_bytes));
    if (!got.ok()) return got.status();
    if (const auto missing = message.size() - quantized_header_bytes - *got; missing > 0) {
      return corrupt(fmt::format("cut off: ends after {} bytes, inside message {}, which lacks {} of its {} bytes",
                                 source_.taken(), number_, missing, message.size()));
    }
    if (auto status = check_message(codec_, message, count); !status.ok()) {
      return corrupt(fmt::format("damaged: message {}, at byte {}: {}", number_, begins_at_, status.message()));
    }
  }
  if (count < file_message_elements) {
    if (auto status = expect_end(); !status.ok()) return status;
  }
  return count;
}

Status MessageReader::expect_end() {
  const auto end = source_.taken();
  std::array<std::byte, 1> more;
  const auto got = source_.read(more);
  if (!got.ok()) return got.status();
  if (*got == 0) return {};
  return corrupt(fmt::format("damaged: it should end after {} bytes, behind message {}, but goes on", end, number_));
}

}  // namespace unisono::cli

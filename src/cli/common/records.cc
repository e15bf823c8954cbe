#include "cli/common/records.h"

#include <fmt/format.h>

namespace unisono::cli {
namespace {

constexpr size_t header_bytes = 9;
constexpr size_t preamble_bytes_max = 4096;
constexpr size_t strings_max = 1u << 20;
constexpr size_t key_bytes_max = 64;

void write_strings(ByteWriter& writer, const std::vector<std::string>& strings) {
  writer.write(static_cast<uint32_t>(strings.size()));
  for (const auto& text : strings) writer.write_string(text);
}

bool read_strings(ByteReader& reader, std::vector<std::string>& out) {
  const auto count = reader.read<uint32_t>();
  if (count > strings_max) return false;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) out.push_back(reader.read_string(record_bytes_max));
  return reader.ok();
}

ByteView as_view(std::string_view text) { return {reinterpret_cast<const std::byte*>(text.data()), text.size()}; }

}  // namespace

void append_record(std::string& out, RecordKind kind, uint32_t rank, ByteView payload) {
  const auto size = static_cast<uint32_t>(payload.size());
  out.push_back(static_cast<char>(kind));
  out.append(reinterpret_cast<const char*>(&rank), sizeof(rank));
  out.append(reinterpret_cast<const char*>(&size), sizeof(size));
  out.append(reinterpret_cast<const char*>(payload.data()), payload.size());
}

void append_output(std::string& out, uint32_t rank, uint8_t stream, std::string_view bytes) {
  ByteWriter writer;
  writer.write(stream);
  auto payload = std::move(writer).take();
  const auto view = as_view(bytes);
  payload.insert(payload.end(), view.begin(), view.end());
  append_record(out, RecordKind::output, rank, payload);
}

Bytes encode(const Hello& hello) {
  ByteWriter writer;
  writer.write_string(hello.version).write_string(hello.host).write(hello.pid).write(hello.port);
  return std::move(writer).take();
}

Bytes encode(const StartOrder& order) {
  ByteWriter writer;
  write_strings(writer, order.program);
  write_strings(writer, order.environment);
  writer.write_string(order.directory).write(order.first_rank).write(order.rank_count);
  writer.write_string(order.key);
  writer.write(static_cast<uint8_t>(order.keep_port)).write(static_cast<uint8_t>(order.pin));
  return std::move(writer).take();
}

Bytes encode(const Ended& ended) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(ended.by_signal)).write(static_cast<uint8_t>(ended.core_dumped));
  writer.write(ended.code).write(ended.after);
  return std::move(writer).take();
}

Bytes encode(const Refused& refused) {
  ByteWriter writer;
  writer.write(refused.error).write_string(refused.message);
  return std::move(writer).take();
}

bool decode(ByteView payload, Hello& hello) {
  ByteReader reader(payload);
  hello.version = reader.read_string(256);
  hello.host = reader.read_string(1024);
  hello.pid = reader.read<uint32_t>();
  hello.port = reader.read<uint32_t>();
  return reader.done();
}

bool decode(ByteView payload, StartOrder& order) {
  ByteReader reader(payload);
  if (!read_strings(reader, order.program) || !read_strings(reader, order.environment)) return false;
  order.directory = reader.read_string(record_bytes_max);
  order.first_rank = reader.read<uint32_t>();
  order.rank_count = reader.read<uint32_t>();
  order.key = reader.read_string(key_bytes_max);
  order.keep_port = reader.read<uint8_t>() != 0;
  order.pin = reader.read<uint8_t>() != 0;
  return reader.done() && !order.program.empty();
}

bool decode(ByteView payload, Ended& ended) {
  ByteReader reader(payload);
  ended.by_signal = reader.read<uint8_t>() != 0;
  ended.core_dumped = reader.read<uint8_t>() != 0;
  ended.code = reader.read<int32_t>();
  ended.after = reader.read<Nanos>();
  return reader.done();
}

bool decode(ByteView payload, Refused& refused) {
  ByteReader reader(payload);
  refused.error = reader.read<int32_t>();
  refused.message = reader.read_string(record_bytes_max);
  return reader.done();
}

void RecordReader::push(std::string_view bytes) {
  buffer_.erase(0, at_);
  at_ = 0;
  buffer_ += bytes;
  if (!greeted_) skip_to_greeting();
}

void RecordReader::skip_to_greeting() {
  const auto found = buffer_.find(agent_greeting);
  greeted_ = found != std::string::npos;
  // If there is no greeting in the buffer, the buffer may still end with the beginning of one. So its last bytes are kept.
  const auto skipped = greeted_ ? found : buffer_.size() - std::min(buffer_.size(), agent_greeting.size() - 1);
  preamble_ += buffer_.substr(0, skipped);
  if (preamble_.size() > preamble_bytes_max) preamble_.erase(0, preamble_.size() - preamble_bytes_max);
  buffer_.erase(0, greeted_ ? found + agent_greeting.size() : skipped);
}

Result<std::optional<Record>> RecordReader::next() {
  if (!greeted_ || buffer_.size() - at_ < header_bytes) return std::optional<Record>{};
  ByteReader header(as_view(std::string_view(buffer_).substr(at_, header_bytes)));
  const auto kind = header.read<uint8_t>();
  const auto rank = header.read<uint32_t>();
  const auto size = header.read<uint32_t>();
  if (kind < 1 || kind > static_cast<uint8_t>(RecordKind::done) || size > record_bytes_max) {
    return Status(Code::corrupt, fmt::format("record of kind {} with {} bytes", kind, size));
  }
  if (buffer_.size() - at_ - header_bytes < size) return std::optional<Record>{};
  const auto payload = as_view(std::string_view(buffer_).substr(at_ + header_bytes, size));
  at_ += header_bytes + size;
  return std::optional<Record>(Record{static_cast<RecordKind>(kind), rank, Bytes(payload.begin(), payload.end())});
}

}  // namespace unisono::cli

#include "rendezvous/rendezvous_messages.h"

#include <algorithm>

#include "base/concat.h"
#include "wire/checksum.h"

namespace unisono::rendezvous {

namespace {

struct Envelope {
  uint32_t magic = message_magic;
  uint16_t protocol = protocol_version;
  uint16_t kind = 0;
  uint32_t payload_bytes = 0;
  uint32_t checksum = 0;  // CRC-32C of the payload and of the other twelve bytes of the envelope
};
static_assert(sizeof(Envelope) == envelope_bytes);
constexpr size_t checked_bytes = offsetof(Envelope, checksum);
// A server reads at most hello_bytes_max from a member, so the text of a failure is cut to this length.
constexpr size_t failure_bytes_max = 8 << 10;

Bytes seal(Kind kind, ByteView payload, uint16_t protocol = protocol_version) {
  Envelope envelope;
  envelope.protocol = protocol;
  envelope.kind = static_cast<uint16_t>(kind);
  envelope.payload_bytes = static_cast<uint32_t>(payload.size());
  envelope.checksum = crc32c(payload.data(), payload.size(), crc32c(&envelope, checked_bytes));
  Bytes bytes(envelope_bytes + payload.size());
  std::memcpy(bytes.data(), &envelope, envelope_bytes);
  if (!payload.empty()) std::memcpy(bytes.data() + envelope_bytes, payload.data(), payload.size());
  return bytes;
}

void write_id(ByteWriter& writer, const PeerId& id) { writer.write(id.low).write(id.high); }

PeerId read_id(ByteReader& reader) {
  PeerId id;
  id.low = reader.read<uint64_t>();
  id.high = reader.read<uint64_t>();
  return id;
}

void write_status(ByteWriter& writer, const Status& status) {
  writer.write(static_cast<uint8_t>(status.code()));
  writer.write_string(std::string_view(status.message()).substr(0, text_bytes_max));
}

bool read_status(ByteReader& reader, Status& status) {
  const auto code = reader.read<uint8_t>();
  auto text = reader.read_string(text_bytes_max);
  if (!reader.ok() || code > static_cast<uint8_t>(Code::internal)) return false;
  status = Status(static_cast<Code>(code), std::move(text));
  return true;
}

Status corrupt(const std::string& what) { return {Code::corrupt, "rendezvous message: " + what}; }

}  // namespace

Bytes encode(const Hello& hello) {
  ByteWriter writer;
  writer.write_string(hello.version).write_string(hello.host).write(hello.pid).write_string(hello.job);
  writer.write(static_cast<uint8_t>(hello.role)).write(hello.world_size).write(hello.remaining_ms);
  writer.write_string(hello.transport).write(hello.epoch).write(hello.key);
  write_member(writer, hello.member);
  return seal(Kind::hello, writer.view());
}

Result<Hello> decode_hello(ByteView payload, uint16_t protocol) {
  ByteReader reader(payload);
  Hello hello;
  hello.protocol = protocol;
  hello.version = reader.read_string(version_bytes_max);
  hello.host = reader.read_string(host_bytes_max);
  hello.pid = reader.read<int32_t>();
  hello.job = reader.read_string(job_bytes_max);
  if (!reader.ok()) return corrupt("hello: truncated or above a limit in version, host, pid or job");
  if (protocol != protocol_version) return hello;
  const auto role = reader.read<uint8_t>();
  if (role > static_cast<uint8_t>(Role::attending_member)) return corrupt(concat("hello: role ", role));
  hello.role = static_cast<Role>(role);
  hello.world_size = reader.read<uint32_t>();
  hello.remaining_ms = reader.read<uint32_t>();
  hello.transport = reader.read_string(transport_bytes_max);
  hello.epoch = reader.read<uint32_t>();
  hello.key = reader.read<RosterKey>();
  if (!read_member(reader, hello.member)) return corrupt("hello: truncated or above a limit");
  if (!reader.done()) return corrupt(concat("hello: ", reader.left(), " bytes too many"));
  if (hello.role == Role::member) {
    if (hello.world_size == 0 || hello.world_size > world_size_max)
      return corrupt(concat("hello: world size ", hello.world_size));
    if (hello.member.rank >= hello.world_size)
      return corrupt(concat("hello: rank ", hello.member.rank, " of ", hello.world_size));
  }
  return hello;
}

Bytes encode(const Welcome& welcome) {
  ByteWriter writer;
  write_id(writer, welcome.server);
  writer.write_string(welcome.version);
  return seal(Kind::welcome, writer.view());
}

Result<Welcome> decode_welcome(ByteView payload) {
  ByteReader reader(payload);
  Welcome welcome;
  welcome.server = read_id(reader);
  welcome.version = reader.read_string(version_bytes_max);
  if (!reader.done()) return corrupt("welcome");
  return welcome;
}

Bytes encode_refused(const Status& status, uint16_t protocol) {
  ByteWriter writer;
  write_status(writer, status);
  return seal(Kind::refused, writer.view(), protocol);
}

Status decode_refused(ByteView payload) {
  ByteReader reader(payload);
  Status status;
  if (!read_status(reader, status) || !reader.done()) return corrupt("refused");
  if (status.ok()) return corrupt("refused without a reason");
  return status;
}

Bytes encode_joined() { return seal(Kind::joined, {}); }

Bytes encode_failed(const Status& status) {
  ByteWriter writer;
  write_status(writer, {status.code(), status.message().substr(0, failure_bytes_max)});
  return seal(Kind::failed, writer.view());
}

Bytes encode_table(const Roster& roster) { return seal(Kind::table, unisono::encode(roster)); }

Bytes encode_joiner(const MemberRecord& member) {
  ByteWriter writer;
  write_member(writer, member);
  return seal(Kind::joiner, writer.view());
}

Result<MemberRecord> decode_joiner(ByteView payload) {
  ByteReader reader(payload);
  MemberRecord member;
  if (!read_member(reader, member) || !reader.done()) return corrupt("joiner");
  return member;
}

Bytes encode_joiner_gone(const PeerId& id) {
  ByteWriter writer;
  write_id(writer, id);
  return seal(Kind::joiner_gone, writer.view());
}

Result<PeerId> decode_joiner_gone(ByteView payload) {
  ByteReader reader(payload);
  const auto id = read_id(reader);
  if (!reader.done()) return corrupt("joiner_gone");
  return id;
}

Bytes encode(const Answer& answer) {
  ByteWriter writer;
  write_id(writer, answer.joiner);
  write_status(writer, answer.status);
  if (answer.status.ok()) write_roster(writer, answer.roster);
  return seal(Kind::answer, writer.view());
}

Result<Answer> decode_answer(ByteView payload) {
  ByteReader reader(payload);
  Answer answer;
  answer.joiner = read_id(reader);
  if (!read_status(reader, answer.status)) return corrupt("answer: status");
  if (answer.status.ok()) {
    if (auto status = read_roster(reader, answer.roster); !status.ok()) return status;
    if (!answer.roster.rank_of(answer.joiner)) return corrupt("answer: the roster lacks the joiner");
  }
  if (!reader.done()) return corrupt("answer: bytes too many");
  return answer;
}

const char* name(StreamFault fault) {
  switch (fault) {
    case StreamFault::none: return "none";
    case StreamFault::magic: return "magic";
    case StreamFault::size: return "size";
    case StreamFault::checksum: return "checksum";
    case StreamFault::kind: return "kind";
  }
  return "unknown";
}

void MessageStream::append(ByteView bytes) {
  if (fault_ != StreamFault::none) return;
  if (at_ > 0) {
    buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<ptrdiff_t>(at_));
    at_ = 0;
  }
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

std::optional<Message> MessageStream::next(size_t limit) {
  if (fault_ != StreamFault::none) return std::nullopt;
  const ByteView rest = ByteView(buffer_).subspan(at_);
  // Compare the bytes of the magic number that have already arrived. Even the first byte can show that this is another
  // protocol.
  const size_t known = std::min(rest.size(), sizeof(message_magic));
  if (known > 0 && std::memcmp(rest.data(), &message_magic, known) != 0) {
    fault_ = StreamFault::magic;
    return std::nullopt;
  }
  if (rest.size() < envelope_bytes) return std::nullopt;
  Envelope envelope;
  std::memcpy(&envelope, rest.data(), envelope_bytes);
  if (envelope.payload_bytes > limit) {
    fault_ = StreamFault::size;
    return std::nullopt;
  }
  if (rest.size() < envelope_bytes + envelope.payload_bytes) return std::nullopt;
  const ByteView payload = rest.subspan(envelope_bytes, envelope.payload_bytes);
  if (crc32c(payload.data(), payload.size(), crc32c(&envelope, checked_bytes)) != envelope.checksum) {
    fault_ = StreamFault::checksum;
    return std::nullopt;
  }
  if (envelope.kind < static_cast<uint16_t>(Kind::hello) || envelope.kind > static_cast<uint16_t>(Kind::failed)) {
    fault_ = StreamFault::kind;
    return std::nullopt;
  }
  at_ += envelope_bytes + payload.size();
  return Message{envelope.protocol, static_cast<Kind>(envelope.kind), Bytes(payload.begin(), payload.end())};
}

std::string guess_program(ByteView first_bytes) {
  const std::string_view text(reinterpret_cast<const char*>(first_bytes.data()), first_bytes.size());
  for (const char* method : {"HTTP/", "GET ", "HEAD ", "POST ", "PUT ", "OPTIONS ", "CONNECT "}) {
    if (text.starts_with(method)) return text.starts_with("HTTP/") ? "an HTTP server" : "an HTTP client";
  }
  if (text.starts_with("SSH-")) return "an SSH server";
  if (text.starts_with("220 ") || text.starts_with("220-")) return "a mail or FTP server";
  if (text.size() >= 2 && (text[0] == 0x15 || text[0] == 0x16) && text[1] == 0x03) return "a TLS program";
  if (text.empty()) return "a program that sent nothing";
  std::string shown;
  for (const char c : text.substr(0, 16)) {
    constexpr const char* digits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(c);
    if (!shown.empty()) shown += ' ';
    shown += digits[byte >> 4];
    shown += digits[byte & 15];
  }
  return "an unknown program (its first bytes: " + shown + ")";
}

}  // namespace unisono::rendezvous

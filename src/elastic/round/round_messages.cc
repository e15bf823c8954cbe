#include "elastic/round/round_messages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"

namespace unisono {
namespace {

enum class Kind : uint8_t { contribution = 1, result = 2, keep_alive = 3, abandon = 4, fetch = 5, fetch_miss = 6, verdict = 7 };

constexpr size_t group_at = 8;
constexpr uint8_t flag = 1;
constexpr size_t mask_words = round_members_max / 64;

struct Head {
  Kind kind = Kind::keep_alive;
  uint8_t codec = 0;
  uint8_t flags = 0;
  uint32_t chunk = 0;
};

void write_head(ByteWriter& writer, const Head& head, const GroupId& group) {
  writer.write(static_cast<uint8_t>(ElasticChannel::round))
      .write(static_cast<uint8_t>(head.kind))
      .write(head.codec)
      .write(head.flags);
  writer.write(head.chunk).write(group.low).write(group.high);
}

uint8_t number(const WireCodec& codec) { return static_cast<uint8_t>(codec.kind); }

Status corrupt(const std::string& what) { return {Code::corrupt, "a message of a round with " + what}; }

bool all_zero(ByteView bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// Returns the padding of a head: the bytes from the reader's position up to head_bytes.
ByteView padding(ByteView bytes, const ByteReader& reader, size_t head_bytes) {
  const size_t at = bytes.size() - reader.left();
  return bytes.subspan(at, head_bytes - at);
}

void write_ranks(ByteWriter& writer, const RankSet& ranks) {
  for (size_t word = 0; word < mask_words; ++word) {
    uint64_t bits = 0;
    for (size_t bit = 0; bit < 64; ++bit) bits |= uint64_t{ranks[64 * word + bit]} << bit;
    writer.write(bits);
  }
}

RankSet read_ranks(ByteReader& reader) {
  RankSet ranks;
  for (size_t word = 0; word < mask_words; ++word) {
    const auto bits = reader.read<uint64_t>();
    for (size_t bit = 0; bit < 64; ++bit) ranks[64 * word + bit] = (bits >> bit & 1) != 0;
  }
  return ranks;
}

bool has_elements(Kind kind) { return kind == Kind::contribution || kind == Kind::result; }
bool has_chunk(Kind kind) { return has_elements(kind) || kind == Kind::fetch || kind == Kind::fetch_miss; }

// Returns true if a field that this kind of message does not use is not 0. Such messages are refused, so that a later version
// can use the field.
bool has_unknown_fields(const Head& head) {
  const uint8_t flags = has_elements(head.kind) || head.kind == Kind::keep_alive ? flag : 0;
  return (head.flags & ~flags) != 0 || (!has_elements(head.kind) && head.codec != 0) ||
         (!has_chunk(head.kind) && head.chunk != 0);
}

Status read_contribution(const RoundFormat& format, const Head& head, ByteReader& reader, ByteView bytes,
                         RoundMessage& message) {
  Contribution read{.chunk = head.chunk, .full = (head.flags & flag) != 0};
  read.weight = reader.read<double>();
  read.sharers = reader.read<uint16_t>();
  read.author = reader.read<uint16_t>();
  if (bytes.size() < contribution_head_bytes) return corrupt("a cut head");
  if (head.codec != number(format.contribute)) return corrupt(concat("codec ", head.codec, " of a contribution"));
  if (!(read.weight >= 0 && read.weight <= contribution_weight_max)) return corrupt(concat("weight ", read.weight));
  if (read.sharers < 1 || read.sharers > round_members_max) return corrupt(concat(read.sharers, " sharers of a weight"));
  if (read.author >= format.members) return corrupt(concat("author ", read.author));
  if (!all_zero(padding(bytes, reader, contribution_head_bytes))) return corrupt("padding that is not zero");
  const size_t count = read.weight > 0 ? format.table.count(head.chunk) : 0;
  message = read;
  return check_message(format.contribute, bytes.subspan(contribution_head_bytes), count);
}

Status read_result(const RoundFormat& format, const Head& head, ByteReader& reader, ByteView bytes, RoundMessage& message) {
  ChunkResult read;
  read.chunk = head.chunk;
  read.full = (head.flags & flag) != 0;
  read.total = reader.read<double>();
  read.variance = reader.read<double>();
  read.digest = reader.read<uint64_t>();
  read.contributors = read_ranks(reader);
  read.author = reader.read<uint16_t>();
  const auto gap = reader.read<uint16_t>() | reader.read<uint32_t>();
  read.refused = read_ranks(reader);
  if (bytes.size() < result_head_bytes) return corrupt("a cut head");
  if (head.codec != number(format.result)) return corrupt(concat("codec ", head.codec, " of a result"));
  if (!(read.total >= 0 && read.total <= contribution_weight_max * round_members_max))
    return corrupt(concat("total weight ", read.total));
  if ((read.contributors >> format.members).any()) return corrupt("contributors beyond the group");
  if ((read.refused >> format.members).any()) return corrupt("refused members beyond the group");
  if ((read.refused & read.contributors).any()) return corrupt("a member that contributed and was refused");
  if (read.author >= format.members) return corrupt(concat("author ", read.author));
  if (gap != 0 || !all_zero(padding(bytes, reader, result_head_bytes))) return corrupt("padding that is not zero");
  message = read;
  return check_message(format.result, bytes.subspan(result_head_bytes), read.is_void() ? 0 : format.table.count(head.chunk));
}

}  // namespace

std::optional<GroupId> round_group(ByteView message) {
  ByteReader reader(message.subspan(std::min(message.size(), group_at)));
  GroupId group;
  group.low = reader.read<uint64_t>();
  group.high = reader.read<uint64_t>();
  if (!reader.ok()) return std::nullopt;
  return group;
}

namespace {

SharedBuffer contribution_of(const RoundFormat& format, const Contribution& head, size_t element_bytes) {
  UNISONO_CHECK(head.chunk < format.table.chunks());
  ByteWriter writer;
  write_head(writer, {Kind::contribution, number(format.contribute), static_cast<uint8_t>(head.full ? flag : 0), head.chunk},
             format.group);
  writer.write(head.weight).write(static_cast<uint16_t>(head.sharers)).write(static_cast<uint16_t>(head.author));
  auto message = SharedBuffer::make(contribution_head_bytes + element_bytes);
  std::memset(message.data(), 0, contribution_head_bytes);
  std::memcpy(message.data(), writer.view().data(), writer.view().size());
  return message;
}

}  // namespace

SharedBuffer contribution_message(const RoundFormat& format, const Contribution& head) {
  return contribution_of(format, head, format.contribute.message_bytes(head.weight > 0 ? format.table.count(head.chunk) : 0));
}

SharedBuffer contribution_head(const RoundFormat& format, const Contribution& head) { return contribution_of(format, head, 0); }

void write_result_head(const RoundFormat& format, const ChunkResult& head, SharedBuffer& message) {
  ByteWriter writer;
  write_head(writer, {Kind::result, number(format.result), static_cast<uint8_t>(head.full ? flag : 0), head.chunk},
             format.group);
  writer.write(head.total).write(head.variance).write(head.digest);
  write_ranks(writer, head.contributors);
  writer.write(static_cast<uint16_t>(head.author)).write(uint16_t{0}).write(uint32_t{0});
  write_ranks(writer, head.refused);
  std::memset(message.data(), 0, result_head_bytes);
  std::memcpy(message.data(), writer.view().data(), writer.view().size());
}

SharedBuffer result_message(const RoundFormat& format, const ChunkResult& head) {
  UNISONO_CHECK(head.chunk < format.table.chunks());
  const size_t count = head.is_void() ? 0 : format.table.count(head.chunk);
  auto message = SharedBuffer::make(result_head_bytes + format.result.message_bytes(count));
  write_result_head(format, head, message);
  return message;
}

SharedBuffer round_message(const GroupId& group, const RoundMessage& message) {
  ByteWriter writer;
  if (const auto* alive = std::get_if<KeepAlive>(&message)) {
    write_head(writer, {.kind = Kind::keep_alive, .flags = static_cast<uint8_t>(alive->ended ? flag : 0)}, group);
  } else if (std::holds_alternative<Abandon>(message)) {
    write_head(writer, {.kind = Kind::abandon}, group);
  } else if (const auto* fetch = std::get_if<Fetch>(&message)) {
    write_head(writer, {.kind = Kind::fetch, .chunk = fetch->chunk}, group);
  } else if (const auto* miss = std::get_if<FetchMiss>(&message)) {
    write_head(writer, {.kind = Kind::fetch_miss, .chunk = miss->chunk}, group);
  } else {
    const auto* verdict = std::get_if<VerdictMessage>(&message);
    UNISONO_CHECK(verdict != nullptr);
    write_head(writer, {.kind = Kind::verdict}, group);
    write_verdict(writer, *verdict);
  }
  return SharedBuffer::copy(writer.view());
}

Status read_round_message(const RoundFormat& format, ByteView bytes, RoundMessage& message) {
  ByteReader reader(bytes);
  Head head;
  const auto channel = reader.read<uint8_t>();
  head.kind = static_cast<Kind>(reader.read<uint8_t>());
  head.codec = reader.read<uint8_t>();
  head.flags = reader.read<uint8_t>();
  head.chunk = reader.read<uint32_t>();
  GroupId group;
  group.low = reader.read<uint64_t>();
  group.high = reader.read<uint64_t>();
  if (!reader.ok()) return corrupt(concat(bytes.size(), " bytes"));
  if (channel != static_cast<uint8_t>(ElasticChannel::round)) return corrupt(concat("channel ", channel));
  if (group != format.group) return corrupt("another group's id");
  if (has_unknown_fields(head)) return corrupt("fields that its kind does not have");
  if (has_chunk(head.kind) && head.chunk >= format.table.chunks()) return corrupt(concat("chunk ", head.chunk));
  switch (head.kind) {
    case Kind::contribution: return read_contribution(format, head, reader, bytes, message);
    case Kind::result: return read_result(format, head, reader, bytes, message);
    case Kind::keep_alive: message = KeepAlive{(head.flags & flag) != 0}; break;
    case Kind::abandon: message = Abandon{}; break;
    case Kind::fetch: message = Fetch{head.chunk}; break;
    case Kind::fetch_miss: message = FetchMiss{head.chunk}; break;
    case Kind::verdict: {
      VerdictMessage verdict;
      if (auto status = read_verdict(reader, format.table.chunks(), verdict); !status.ok()) return status;
      message = std::move(verdict);
      break;
    }
    default: return corrupt(concat("kind ", static_cast<int>(head.kind)));
  }
  return reader.done() ? Status() : corrupt("bytes after its end");
}

}  // namespace unisono

#include "elastic/formation/formation_messages.h"

#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "base/concat.h"

namespace unisono {

namespace {

using namespace formation;

Status corrupt_message(const std::string& what) { return {Code::corrupt, "formation message: " + what}; }

void write_peer(ByteWriter& writer, const PeerId& peer) { writer.write(peer.low).write(peer.high); }
PeerId read_peer(ByteReader& reader) {
  PeerId peer;
  peer.low = reader.read<uint64_t>();
  peer.high = reader.read<uint64_t>();
  return peer;
}

void write_group(ByteWriter& writer, const GroupId& id) { writer.write(id.low).write(id.high); }
GroupId read_group(ByteReader& reader) {
  GroupId id;
  id.low = reader.read<uint64_t>();
  id.high = reader.read<uint64_t>();
  return id;
}

void write_slot(ByteWriter& writer, const SlotName& slot) {
  writer.write(slot.layout_version).write(slot.layout_digest).write(slot.step).write(slot.round).write(slot.line);
}
bool read_slot(ByteReader& reader, SlotName& slot) {
  slot.layout_version = reader.read<uint64_t>();
  slot.layout_digest = reader.read<uint64_t>();
  slot.step = reader.read<uint64_t>();
  slot.round = reader.read<uint32_t>();
  slot.line = reader.read<uint32_t>();
  return reader.ok() && slot.layout_version < steps_max && slot.step < steps_max && slot.round < rounds_max &&
         slot.line < rounds_max;
}

bool read_opened(ByteReader& reader, uint64_t& opened) {
  opened = reader.read<uint64_t>();
  return reader.ok() && opened <= steps_max;
}

bool read_flag(ByteReader& reader, bool& flag) {
  const auto value = reader.read<uint8_t>();
  flag = value != 0;
  return reader.ok() && value <= 1;
}

bool read_role(ByteReader& reader, ElasticRole& role) {
  const auto value = reader.read<uint8_t>();
  role = static_cast<ElasticRole>(value);
  return reader.ok() && value <= static_cast<uint8_t>(ElasticRole::reducer);
}

bool read_bandwidth(ByteReader& reader, double& bandwidth) {
  bandwidth = reader.read<double>();
  return reader.ok() && std::isfinite(bandwidth);
}

void write_peers(ByteWriter& writer, const std::vector<PeerId>& peers) {
  writer.write(static_cast<uint32_t>(peers.size()));
  for (const auto& peer : peers) write_peer(writer, peer);
}
bool read_peers(ByteReader& reader, std::vector<PeerId>& peers) {
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > roster_peers_max || count > reader.left() / (2 * sizeof(uint64_t))) return false;
  std::set<PeerId> known;
  for (uint32_t i = 0; i < count; ++i) {
    peers.push_back(read_peer(reader));
    if (!known.insert(peers.back()).second) return false;
  }
  return true;
}

void write_body(ByteWriter& writer, const Register& body) {
  write_slot(writer, body.slot);
  writer.write(body.cell).write(body.position);
  writer.write<uint8_t>(body.weighted).write<uint8_t>(body.pre).write<uint8_t>(body.in_layout);
  writer.write(static_cast<uint8_t>(body.role)).write(body.bandwidth).write(body.schema).write(body.attempt);
  write_peers(writer, body.missing);
}
Status read_body(ByteReader& reader, Register& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("register: slot");
  body.cell = reader.read<uint32_t>();
  body.position = reader.read<uint32_t>();
  if (!read_flag(reader, body.weighted) || !read_flag(reader, body.pre) || !read_flag(reader, body.in_layout))
    return corrupt_message("register: flags");
  if (!read_role(reader, body.role)) return corrupt_message("register: role");
  if (!read_bandwidth(reader, body.bandwidth)) return corrupt_message("register: bandwidth");
  body.schema = reader.read<uint64_t>();
  body.attempt = reader.read<uint64_t>();
  if (!read_peers(reader, body.missing)) return corrupt_message("register: missing");
  return {};
}

void write_body(ByteWriter& writer, const Pending& body) {
  write_slot(writer, body.slot);
  writer.write(body.attempt).write(body.steps_opened).write(body.round_ms);
}
Status read_body(ByteReader& reader, Pending& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("pending: slot");
  body.attempt = reader.read<uint64_t>();
  if (!read_opened(reader, body.steps_opened)) return corrupt_message("pending: opened averaging steps");
  body.round_ms = reader.read<uint64_t>();
  return {};
}

void write_body(ByteWriter& writer, const Descriptor& body) {
  const auto& group = body.group;
  write_group(writer, group.id);
  write_slot(writer, group.slot);
  writer.write(group.schema).write<uint8_t>(group.line_complete).write(group.highest_opened);
  writer.write(static_cast<uint32_t>(group.members.size()));
  for (size_t rank = 0; rank < group.members.size(); ++rank) {
    const auto& member = group.members[rank];
    write_peer(writer, member.id);
    writer.write(member.position).write<uint8_t>(member.weighted).write<uint8_t>(member.in_layout);
    writer.write(static_cast<uint8_t>(member.role)).write(member.bandwidth).write(group.chunk_counts[rank]);
  }
  write_peers(writer, group.missing);
}

Status read_members(ByteReader& reader, GroupDescriptor& group) {
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count < 2 || count > group_members_max) return corrupt_message("descriptor: number of members");
  std::set<PeerId> known;
  for (uint32_t rank = 0; rank < count; ++rank) {
    GroupMember member;
    member.id = read_peer(reader);
    member.position = reader.read<uint32_t>();
    const bool fits = read_flag(reader, member.weighted) && read_flag(reader, member.in_layout) &&
                      read_role(reader, member.role) && read_bandwidth(reader, member.bandwidth);
    const auto chunks = reader.read<uint32_t>();
    if (!fits || !reader.ok() || chunks > group_chunks_max || !known.insert(member.id).second)
      return corrupt_message(concat("descriptor: rank ", rank));
    if (member.role == ElasticRole::client && chunks > 0)
      return corrupt_message(concat("descriptor: rank ", rank, " is a client and owns chunks"));
    group.members.push_back(member);
    group.chunk_counts.push_back(chunks);
  }
  return {};
}

Status read_body(ByteReader& reader, Descriptor& body) {
  auto& group = body.group;
  group.id = read_group(reader);
  if (!read_slot(reader, group.slot)) return corrupt_message("descriptor: slot");
  group.schema = reader.read<uint64_t>();
  if (!read_flag(reader, group.line_complete)) return corrupt_message("descriptor: flags");
  if (!read_opened(reader, group.highest_opened)) return corrupt_message("descriptor: opened averaging steps");
  if (auto status = read_members(reader, group); !status.ok()) return status;
  if (!read_peers(reader, group.missing)) return corrupt_message("descriptor: missing");
  return {};
}

void write_body(ByteWriter& writer, const DescriptorAck& body) { write_group(writer, body.id); }
Status read_body(ByteReader& reader, DescriptorAck& body) {
  body.id = read_group(reader);
  return {};
}

void write_body(ByteWriter& writer, const Alone& body) {
  write_slot(writer, body.slot);
  writer.write<uint8_t>(body.no_reducer).write(body.steps_opened);
  write_peers(writer, body.missing);
}
Status read_body(ByteReader& reader, Alone& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("alone: slot");
  if (!read_flag(reader, body.no_reducer)) return corrupt_message("alone: flags");
  if (!read_opened(reader, body.steps_opened)) return corrupt_message("alone: opened averaging steps");
  if (!read_peers(reader, body.missing)) return corrupt_message("alone: missing");
  return {};
}

void write_body(ByteWriter& writer, const Closed& body) {
  write_slot(writer, body.slot);
  writer.write(body.steps_opened).write(body.since_ms);
}
Status read_body(ByteReader& reader, Closed& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("closed: slot");
  if (!read_opened(reader, body.steps_opened)) return corrupt_message("closed: opened averaging steps");
  body.since_ms = reader.read<uint64_t>();
  return {};
}

void write_body(ByteWriter& writer, const Full& body) {
  write_slot(writer, body.slot);
  writer.write<uint8_t>(body.other_schema).write(body.steps_opened);
}
Status read_body(ByteReader& reader, Full& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("full: slot");
  if (!read_flag(reader, body.other_schema)) return corrupt_message("full: flags");
  if (!read_opened(reader, body.steps_opened)) return corrupt_message("full: opened averaging steps");
  return {};
}

void write_body(ByteWriter& writer, const StaleLayout& body) {
  write_slot(writer, body.slot);
  writer.write(body.steps_opened);
  write_layout(writer, body.newer);
}
Status read_body(ByteReader& reader, StaleLayout& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("stale layout: slot");
  if (!read_opened(reader, body.steps_opened)) return corrupt_message("stale layout: opened averaging steps");
  return read_layout(reader, body.newer);
}

void write_body(ByteWriter& writer, const LayoutReply& body) { write_layout(writer, body.layout); }
Status read_body(ByteReader& reader, LayoutReply& body) { return read_layout(reader, body.layout); }

void write_body(ByteWriter& writer, const NeedLayout& body) { write_slot(writer, body.slot); }
Status read_body(ByteReader& reader, NeedLayout& body) {
  return read_slot(reader, body.slot) ? Status() : corrupt_message("need layout: slot");
}

void write_body(ByteWriter& writer, const Late& body) { write_slot(writer, body.slot); }
Status read_body(ByteReader& reader, Late& body) {
  return read_slot(reader, body.slot) ? Status() : corrupt_message("late: slot");
}

void write_body(ByteWriter& writer, const Decline& body) {
  write_group(writer, body.id);
  write_slot(writer, body.slot);
}
Status read_body(ByteReader& reader, Decline& body) {
  body.id = read_group(reader);
  return read_slot(reader, body.slot) ? Status() : corrupt_message("decline: slot");
}

void write_body(ByteWriter& writer, const GetDescriptor& body) { write_group(writer, body.id); }
Status read_body(ByteReader& reader, GetDescriptor& body) {
  body.id = read_group(reader);
  return {};
}

void write_body(ByteWriter& writer, const Withdraw& body) {
  write_slot(writer, body.slot);
  writer.write(body.attempt);
}
Status read_body(ByteReader& reader, Withdraw& body) {
  if (!read_slot(reader, body.slot)) return corrupt_message("withdraw: slot");
  body.attempt = reader.read<uint64_t>();
  return {};
}

template <typename Body>
Result<FormationMessage> read_message(ByteReader& reader) {
  Body body;
  if (auto status = read_body(reader, body); !status.ok()) return status;
  if (!reader.ok()) return corrupt_message("cut");
  if (reader.left() > 0) return corrupt_message(concat(reader.left(), " bytes too many"));
  return FormationMessage(std::move(body));
}

// Selects the reader by the kind's index in the variant, so that kind numbers and message types always agree.
template <size_t... index>
Result<FormationMessage> read_kind(ByteReader& reader, size_t kind, std::index_sequence<index...>) {
  using Read = Result<FormationMessage> (*)(ByteReader&);
  constexpr Read readers[] = {&read_message<std::variant_alternative_t<index, FormationMessage>>...};
  return readers[kind](reader);
}

}  // namespace

bool for_coordinator(const FormationMessage& message) {
  return std::holds_alternative<Register>(message) || std::holds_alternative<DescriptorAck>(message) ||
         std::holds_alternative<LayoutReply>(message) || std::holds_alternative<Late>(message) ||
         std::holds_alternative<Withdraw>(message);
}

Bytes encode(const FormationMessage& message) {
  ByteWriter writer;
  writer.write(ElasticChannel::formation).write(formation_version).write(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& body) { write_body(writer, body); }, message);
  return std::move(writer).take();
}

Result<FormationMessage> decode_formation(ByteView bytes) {
  ByteReader reader(bytes);
  const auto channel = reader.read<uint8_t>();
  const auto version = reader.read<uint8_t>();
  const auto kind = reader.read<uint8_t>();
  if (!reader.ok()) return corrupt_message("cut");
  if (channel != static_cast<uint8_t>(ElasticChannel::formation)) return corrupt_message(concat("channel ", channel));
  if (version != formation_version) return corrupt_message(concat("version ", version));
  constexpr size_t kinds = std::variant_size_v<FormationMessage>;
  if (kind == 0 || kind > kinds) return corrupt_message(concat("kind ", kind));
  return read_kind(reader, kind - 1u, std::make_index_sequence<kinds>());
}

}  // namespace unisono

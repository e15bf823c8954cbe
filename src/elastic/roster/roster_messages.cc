#include "elastic/roster/roster_messages.h"

#include <algorithm>
#include <bit>

#include "base/concat.h"
#include "elastic/wire/elastic_message.h"

namespace unisono {

namespace {

Status corrupt(const std::string& what) { return {Code::corrupt, "roster message: " + what}; }

void write_id(ByteWriter& writer, const PeerId& id) { writer.write(id.low).write(id.high); }

PeerId read_id(ByteReader& reader) {
  PeerId id;
  id.low = reader.read<uint64_t>();
  id.high = reader.read<uint64_t>();
  return id;
}

void write_parts(ByteWriter& writer, const std::vector<uint64_t>& parts) {
  writer.write(static_cast<uint16_t>(parts.size()));
  for (const auto part : parts) writer.write(part);
}

bool read_parts(ByteReader& reader, std::vector<uint64_t>& parts) {
  const auto count = reader.read<uint16_t>();
  if (!reader.ok() || count > roster_parts_max || (count != 0 && !std::has_single_bit(count)) ||
      reader.left() < count * sizeof(uint64_t))
    return false;
  parts.resize(count);
  for (auto& part : parts) part = reader.read<uint64_t>();
  return true;
}

void write_body(ByteWriter& writer, const RosterHello& hello) {
  writer.write_string(hello.run_id).write(hello.sum);
  write_parts(writer, hello.parts);
}
void write_body(ByteWriter& writer, const RosterWelcome& welcome) {
  writer.write(welcome.sum).write(static_cast<uint8_t>(welcome.last ? 1 : 0));
  write_parts(writer, welcome.parts);
}
void write_body(ByteWriter& writer, const RosterRefused& refused) {
  writer.write(static_cast<uint8_t>(refused.reason)).write_string(std::string_view(refused.text).substr(0, refusal_bytes_max));
}
void write_body(ByteWriter& writer, const RosterProbe& probe) {
  write_id(writer, probe.origin);
  writer.write(probe.sequence);
}
void write_body(ByteWriter& writer, const RosterAck& ack) {
  write_id(writer, ack.origin);
  write_id(writer, ack.target);
  writer.write(ack.sequence);
}
void write_body(ByteWriter& writer, const RosterProbeRequest& request) {
  write_id(writer, request.target);
  writer.write(request.sequence);
}
void write_body(ByteWriter& writer, const RosterGossip& gossip) { writer.write(static_cast<uint8_t>(gossip.answer ? 1 : 0)); }
void write_body(ByteWriter& writer, const LayoutPull& pull) { writer.write(pull.version); }
void write_body(ByteWriter& writer, const LayoutPush& push) { write_layout(writer, *push.layout); }

Status read_body(ByteReader& reader, RosterHello& hello) {
  hello.run_id = reader.read_string(run_id_bytes_max);
  hello.sum = reader.read<uint64_t>();
  return reader.ok() && read_parts(reader, hello.parts)
             ? Status()
             : corrupt("hello: cut, or the run's id is too long, or its parts are not 0 or a power of two");
}
Status read_body(ByteReader& reader, RosterWelcome& welcome) {
  welcome.sum = reader.read<uint64_t>();
  const auto last = reader.read<uint8_t>();
  welcome.last = last == 1;
  return reader.ok() && last <= 1 && read_parts(reader, welcome.parts)
             ? Status()
             : corrupt("welcome: cut, or its flag is not 0 or 1, or its parts are not 0 or a power of two");
}
Status read_body(ByteReader& reader, RosterRefused& refused) {
  const auto reason = reader.read<uint8_t>();
  refused.reason = static_cast<RefusalReason>(reason);
  refused.text = reader.read_string(refusal_bytes_max);
  if (!reader.ok()) return corrupt("refused: cut, or its text is too long");
  return reason >= 1 && reason <= static_cast<uint8_t>(RefusalReason::looking) ? Status()
                                                                               : corrupt(concat("refused: reason ", reason));
}
Status read_body(ByteReader& reader, RosterProbe& probe) {
  probe.origin = read_id(reader);
  probe.sequence = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("probe: cut");
}
Status read_body(ByteReader& reader, RosterAck& ack) {
  ack.origin = read_id(reader);
  ack.target = read_id(reader);
  ack.sequence = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("ack: cut");
}
Status read_body(ByteReader& reader, RosterProbeRequest& request) {
  request.target = read_id(reader);
  request.sequence = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("probe request: cut");
}
Status read_body(ByteReader& reader, RosterGossip& gossip) {
  const auto answer = reader.read<uint8_t>();
  gossip.answer = answer == 1;
  return reader.ok() && answer <= 1 ? Status() : corrupt("gossip: cut, or its flag is not 0 or 1");
}
Status read_body(ByteReader& reader, LayoutPull& pull) {
  pull.version = reader.read<uint64_t>();
  return reader.ok() ? Status() : corrupt("layout pull: cut");
}
Status read_body(ByteReader& reader, LayoutPush& push) {
  Layout layout;
  if (auto status = read_layout(reader, layout); !status.ok()) return status;
  if (layout.version > step_number_max || layout.first_step > step_number_max)
    return corrupt("layout: a version or averaging step out of range");
  push.layout = std::make_shared<const Layout>(std::move(layout));
  return {};
}

Status read_claims(ByteReader& reader, std::vector<PeerClaim>& claims) {
  const auto count = reader.read<uint16_t>();
  if (!reader.ok() || count > roster_claims_max) return corrupt("number of entries");
  claims.reserve(count);
  for (uint16_t i = 0; i < count; ++i) {
    if (!read_claim(reader, claims.emplace_back())) return corrupt(concat("entry ", i));
  }
  return {};
}

template <typename Body>
Result<RosterMessage> read_message(ByteReader& reader, RosterMessage&& message) {
  Body body;
  if (auto status = read_body(reader, body); !status.ok()) return status;
  message.body = std::move(body);
  if (auto status = read_claims(reader, message.claims); !status.ok()) return status;
  if (!reader.done()) return corrupt(concat(reader.left(), " bytes too many"));
  return std::move(message);
}

using Read = Result<RosterMessage> (*)(ByteReader&, RosterMessage&&);

template <size_t... index>
Result<RosterMessage> read_kind(size_t kind, ByteReader& reader, RosterMessage&& message, std::index_sequence<index...>) {
  static constexpr Read reads[] = {&read_message<std::variant_alternative_t<index, RosterBody>>...};
  return reads[kind](reader, std::move(message));
}

}  // namespace

Bytes encode(const RosterMessage& message) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(ElasticChannel::roster)).write(static_cast<uint8_t>(message.body.index()));
  writer.write(message.run).write(message.steps_opened).write(message.layout_version).write(message.layout_digest);
  std::visit([&](const auto& body) { write_body(writer, body); }, message.body);
  writer.write(static_cast<uint16_t>(message.claims.size()));
  for (const auto& claim : message.claims) write_claim(writer, claim);
  return std::move(writer).take();
}

Result<RosterMessage> decode_roster_message(ByteView bytes) {
  ByteReader reader(bytes);
  const auto channel = reader.read<uint8_t>();
  const auto kind = reader.read<uint8_t>();
  RosterMessage message;
  message.run = reader.read<uint64_t>();
  message.steps_opened = reader.read<uint64_t>();
  message.layout_version = reader.read<uint64_t>();
  message.layout_digest = reader.read<uint64_t>();
  if (!reader.ok()) return corrupt("cut");
  if (channel != static_cast<uint8_t>(ElasticChannel::roster)) return corrupt(concat("channel ", channel));
  if (message.steps_opened > step_number_max || message.layout_version > step_number_max)
    return corrupt("an averaging step or layout version out of range");
  constexpr size_t kinds = std::variant_size_v<RosterBody>;
  if (kind >= kinds) return corrupt(concat("kind ", kind));
  return read_kind(kind, reader, std::move(message), std::make_index_sequence<kinds>());
}

}  // namespace unisono

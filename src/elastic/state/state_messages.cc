#include "elastic/state/state_messages.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "elastic/wire/elastic_message.h"
#include "wire/digest.h"

namespace unisono {

namespace {

// The numbers of the kinds on the wire. They are in the order of StateMessage's alternatives.
enum class Kind : uint8_t { ask = 1, want = 2, done = 3, offer = 4, busy = 5, refused = 6, alive = 7, part = 8 };
constexpr size_t part_header_bytes = 2 + sizeof(uint64_t) + sizeof(uint32_t);

Status corrupt(const std::string& what) { return {Code::corrupt, "state message: " + what}; }

uint64_t pieces_of(uint64_t bytes) { return (bytes + state_piece_bytes - 1) / state_piece_bytes; }

// Reads `count` numbers of 64 bits. If the message is too short for them, returns false.
bool read_digests(ByteReader& reader, uint64_t count, std::vector<uint64_t>& digests) {
  if (!reader.ok() || count > reader.left() / sizeof(uint64_t)) return false;
  digests.resize(count);
  for (auto& each : digests) each = reader.read<uint64_t>();
  return true;
}

Status read_body(ByteReader& reader, StateManifest& manifest) {
  manifest.step = reader.read<int64_t>();
  manifest.schema = reader.read<uint64_t>();
  manifest.vector_bytes = reader.read<uint64_t>();
  const auto chunks = reader.read<uint32_t>();
  if (!reader.ok() || manifest.step < -1) return corrupt("manifest: averaging step");
  if (chunks > state_chunks_max || !read_digests(reader, chunks, manifest.chunk_digests)) {
    return corrupt(concat("manifest: ", chunks, " chunks"));
  }
  const auto blobs = reader.read<uint32_t>();
  if (!reader.ok() || blobs > state_blobs_max) return corrupt(concat("manifest: ", blobs, " blobs"));
  uint64_t total = 0;
  for (uint32_t i = 0; i < blobs; ++i) {
    StateBlobEntry blob;
    blob.name = reader.read_string(state_blob_name_bytes_max);
    blob.bytes = reader.read<uint64_t>();
    if (!reader.ok() || blob.bytes > state_blob_bytes_max - total) return corrupt(concat("manifest: size of blob ", i));
    if (!read_digests(reader, pieces_of(blob.bytes), blob.digests)) return corrupt(concat("manifest: digests of blob ", i));
    if (!manifest.blobs.empty() && blob.name <= manifest.blobs.back().name) return corrupt("manifest: order of blobs");
    total += blob.bytes;
    manifest.blobs.push_back(std::move(blob));
  }
  return {};
}

void write_body(ByteWriter& writer, const StateAsk& ask) { writer.write(ask.schema).write(ask.wanted); }
void write_body(ByteWriter& writer, const StateWant& want) {
  writer.write(want.state).write(static_cast<uint32_t>(want.parts.size()));
  for (const auto part : want.parts) writer.write(part);
}
void write_body(ByteWriter&, const StateDone&) {}
void write_body(ByteWriter& writer, const StateOffer& offer) { write_manifest(writer, offer.manifest); }
void write_body(ByteWriter& writer, const StateBusy& busy) { writer.write(busy.retry_after_ms); }
void write_body(ByteWriter& writer, const StateRefused& refused) { writer.write(static_cast<uint8_t>(refused.reason)); }
void write_body(ByteWriter&, const StateAlive&) {}
void write_body(ByteWriter& writer, const StatePart& part) {
  writer.write(part.state).write(part.part);
  for (const auto byte : part.bytes) writer.write(byte);
}

Status read_body(ByteReader& reader, StateAsk& ask) {
  ask.schema = reader.read<uint64_t>();
  ask.wanted = reader.read<uint64_t>();
  return reader.ok() ? Status() : corrupt("ask: cut");
}
Status read_body(ByteReader& reader, StateWant& want) {
  want.state = reader.read<uint64_t>();
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > state_window_max) return corrupt("want: number of parts");
  want.parts.resize(count);
  for (auto& part : want.parts) part = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("want: cut");
}
Status read_body(ByteReader&, StateDone&) { return {}; }
Status read_body(ByteReader& reader, StateOffer& offer) { return read_body(reader, offer.manifest); }
Status read_body(ByteReader& reader, StateBusy& busy) {
  busy.retry_after_ms = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("busy: cut");
}
Status read_body(ByteReader& reader, StateRefused& refused) {
  refused.reason = static_cast<StateRefusal>(reader.read<uint8_t>());
  const bool known = refused.reason >= StateRefusal::no_state && refused.reason <= StateRefusal::leaving;
  return reader.ok() && known ? Status() : corrupt("refused: reason");
}
Status read_body(ByteReader&, StateAlive&) { return {}; }

template <typename Body>
Result<StateMessage> read_message(ByteReader& reader) {
  Body body;
  if (auto status = read_body(reader, body); !status.ok()) return status;
  if (!reader.done()) return corrupt(concat(reader.left(), " bytes too many"));
  return StateMessage(std::move(body));
}

// Reads a StatePart. All bytes that follow its head are the bytes of the part.
Result<StateMessage> read_part(ByteView bytes, ByteReader& reader) {
  StatePart part;
  part.state = reader.read<uint64_t>();
  part.part = reader.read<uint32_t>();
  if (!reader.ok()) return corrupt("part: cut");
  part.bytes = bytes.subspan(part_header_bytes);
  return StateMessage(part);
}

}  // namespace

uint32_t StateManifest::part_count() const {
  size_t count = chunk_digests.size();
  for (const auto& blob : blobs) count += blob.digests.size();
  return static_cast<uint32_t>(count);
}

void write_manifest(ByteWriter& writer, const StateManifest& manifest) {
  writer.write(manifest.step).write(manifest.schema).write(manifest.vector_bytes);
  writer.write(static_cast<uint32_t>(manifest.chunk_digests.size()));
  for (const auto each : manifest.chunk_digests) writer.write(each);
  writer.write(static_cast<uint32_t>(manifest.blobs.size()));
  for (const auto& blob : manifest.blobs) {
    writer.write_string(blob.name).write(blob.bytes);
    for (const auto each : blob.digests) writer.write(each);
  }
}

uint64_t digest(const StateManifest& manifest) {
  ByteWriter writer;
  write_manifest(writer, manifest);
  return std::max<uint64_t>(digest64(writer.view()), 1);
}

SharedBuffer encode(const StateMessage& message) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(ElasticChannel::state)).write(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& body) { write_body(writer, body); }, message);
  return SharedBuffer::copy(writer.view());
}

SharedMessage part_message(uint64_t state, uint32_t part, SharedBuffer bytes) {
  ByteWriter writer;
  writer.write(static_cast<uint8_t>(ElasticChannel::state)).write(static_cast<uint8_t>(Kind::part)).write(state).write(part);
  return {SharedBuffer::copy(writer.view()), std::move(bytes)};
}

Result<StateMessage> decode_state(ByteView bytes) {
  ByteReader reader(bytes);
  const auto channel = reader.read<uint8_t>();
  const auto kind = reader.read<uint8_t>();
  if (!reader.ok()) return corrupt("cut");
  if (channel != static_cast<uint8_t>(ElasticChannel::state)) return corrupt(concat("channel ", channel));
  switch (static_cast<Kind>(kind)) {
    case Kind::ask: return read_message<StateAsk>(reader);
    case Kind::want: return read_message<StateWant>(reader);
    case Kind::done: return read_message<StateDone>(reader);
    case Kind::offer: return read_message<StateOffer>(reader);
    case Kind::busy: return read_message<StateBusy>(reader);
    case Kind::refused: return read_message<StateRefused>(reader);
    case Kind::alive: return read_message<StateAlive>(reader);
    case Kind::part: return read_part(bytes, reader);
  }
  return corrupt(concat("kind ", kind));
}

bool for_donor(const StateMessage& message) {
  return std::holds_alternative<StateAsk>(message) || std::holds_alternative<StateWant>(message) ||
         std::holds_alternative<StateDone>(message);
}

const char* name(StateRefusal refusal) {
  switch (refusal) {
    case StateRefusal::no_state: return "it has no state";
    case StateRefusal::other_state: return "it has another state by now";
    case StateRefusal::other_schema: return "it averages other tensors";
    case StateRefusal::leaving: return "it is leaving";
  }
  return "unknown";
}

}  // namespace unisono

#include "elastic/round/verdict_messages.h"

#include <string>

#include "base/concat.h"

namespace unisono {

namespace {

// The numbers of the kinds on the wire. They are in the order of VerdictMessage's alternatives.
enum class Kind : uint8_t { have = 1, propose = 2, accept = 3, prepare = 4, promise = 5, decided = 6 };

Status corrupt(const std::string& what) { return {Code::corrupt, "verdict message: " + what}; }

void write_body(ByteWriter& writer, const VerdictHave& have) { have.chunks.write(writer); }
void write_body(ByteWriter& writer, const VerdictPropose& propose) { propose.value.write(writer.write(propose.ballot)); }
void write_body(ByteWriter& writer, const VerdictAccept& accept) { accept.value.write(writer.write(accept.ballot)); }
void write_body(ByteWriter& writer, const VerdictPrepare& prepare) { writer.write(prepare.ballot); }
void write_body(ByteWriter& writer, const VerdictPromise& promise) {
  writer.write(promise.ballot).write(static_cast<uint8_t>(promise.accepted ? 1 : 0));
  if (promise.accepted) write_body(writer, *promise.accepted);
  promise.have.write(writer);
}
void write_body(ByteWriter& writer, const VerdictDecided& decided) { decided.value.write(writer); }

Status read_ballot(ByteReader& reader, uint32_t& ballot) {
  ballot = reader.read<uint32_t>();
  return reader.ok() ? Status() : corrupt("ballot: cut");
}
Status read_bits(ByteReader& reader, size_t chunks, ChunkBits& bits) {
  const auto status = bits.read(reader, chunks);
  return status.ok() ? status : corrupt(status.message());
}
Status read_ballot_and_bits(ByteReader& reader, size_t chunks, uint32_t& ballot, ChunkBits& bits) {
  auto status = read_ballot(reader, ballot);
  return status.ok() ? read_bits(reader, chunks, bits) : status;
}

Status read_body(ByteReader& reader, size_t chunks, VerdictHave& have) { return read_bits(reader, chunks, have.chunks); }
Status read_body(ByteReader& reader, size_t chunks, VerdictPropose& propose) {
  return read_ballot_and_bits(reader, chunks, propose.ballot, propose.value);
}
Status read_body(ByteReader& reader, size_t chunks, VerdictAccept& accept) {
  return read_ballot_and_bits(reader, chunks, accept.ballot, accept.value);
}
Status read_body(ByteReader& reader, size_t, VerdictPrepare& prepare) { return read_ballot(reader, prepare.ballot); }
Status read_body(ByteReader& reader, size_t chunks, VerdictPromise& promise) {
  if (auto status = read_ballot(reader, promise.ballot); !status.ok()) return status;
  const auto has_accepted = reader.read<uint8_t>();
  if (!reader.ok() || has_accepted > 1) return corrupt("promise: the flag of an accepted value");
  if (has_accepted == 1) {
    if (auto status = read_body(reader, chunks, promise.accepted.emplace()); !status.ok()) return status;
    if (promise.accepted->ballot > promise.ballot) return corrupt("promise: accepted in a ballot after the promised one");
  }
  return read_bits(reader, chunks, promise.have);
}
Status read_body(ByteReader& reader, size_t chunks, VerdictDecided& decided) {
  return read_bits(reader, chunks, decided.value);
}

template <typename Body>
Status read_as(ByteReader& reader, size_t chunks, VerdictMessage& message) {
  return read_body(reader, chunks, message.emplace<Body>());
}

}  // namespace

void write_verdict(ByteWriter& writer, const VerdictMessage& message) {
  writer.write(static_cast<uint8_t>(message.index() + 1));
  std::visit([&](const auto& body) { write_body(writer, body); }, message);
}

Status read_verdict(ByteReader& reader, size_t chunks, VerdictMessage& message) {
  const auto kind = reader.read<uint8_t>();
  if (!reader.ok()) return corrupt("cut");
  switch (static_cast<Kind>(kind)) {
    case Kind::have: return read_as<VerdictHave>(reader, chunks, message);
    case Kind::propose: return read_as<VerdictPropose>(reader, chunks, message);
    case Kind::accept: return read_as<VerdictAccept>(reader, chunks, message);
    case Kind::prepare: return read_as<VerdictPrepare>(reader, chunks, message);
    case Kind::promise: return read_as<VerdictPromise>(reader, chunks, message);
    case Kind::decided: return read_as<VerdictDecided>(reader, chunks, message);
  }
  return corrupt(concat("kind ", kind));
}

}  // namespace unisono

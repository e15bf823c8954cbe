#include "group/lifecycle/reform_messages.h"

#include "base/concat.h"

namespace unisono {

namespace {

enum class Kind : uint8_t { propose = 1, commit = 2, removed = 3 };
constexpr uint32_t removers_max = 16;  // REMOVED lists at most this many ranks, which is enough for an error text.

Status corrupt(const std::string& what) { return {Code::corrupt, "re-forming message: " + what}; }

void write_departure(ByteWriter& writer, const Departure& departure) {
  writer.write(departure.rank)
      .write(static_cast<uint8_t>(departure.cause))
      .write(departure.reporter)
      .write(departure.waited_ms);
}

bool read_departure(ByteReader& reader, Departure& departure) {
  departure.rank = reader.read<uint32_t>();
  const auto cause = reader.read<uint8_t>();
  departure.reporter = reader.read<uint32_t>();
  departure.waited_ms = reader.read<uint32_t>();
  departure.cause = static_cast<Departure::Cause>(cause);
  return reader.ok() && departure.rank < world_size_max && departure.reporter < world_size_max &&
         cause <= static_cast<uint8_t>(Departure::Cause::unreachable);
}

void write_departures(ByteWriter& writer, const std::vector<Departure>& departures) {
  writer.write(static_cast<uint32_t>(departures.size()));
  for (const auto& departure : departures) write_departure(writer, departure);
}

bool read_departures(ByteReader& reader, std::vector<Departure>& departures) {
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > world_size_max) return false;
  for (uint32_t i = 0; i < count; ++i) {
    Departure departure;
    if (!read_departure(reader, departure)) return false;
    if (!departures.empty() && departure.rank <= departures.back().rank) return false;
    departures.push_back(departure);
  }
  return true;
}

void write_body(ByteWriter& writer, const Propose& propose) {
  writer.write(propose.round).write(propose.waits_ms);
  write_departures(writer, propose.departures);
  writer.write(static_cast<uint32_t>(propose.joiners.size()));
  for (const auto& joiner : propose.joiners) write_member(writer, joiner);
}

void write_body(ByteWriter& writer, const Commit& commit) {
  write_departures(writer, commit.departures);
  write_roster(writer, commit.roster);
}

void write_body(ByteWriter& writer, const Removed& removed) {
  writer.write(removed.epoch).write(removed.survivors).write(removed.age_ms);
  write_departure(writer, removed.departure);
  const auto count = std::min<size_t>(removed.removers.size(), removers_max);
  writer.write(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) writer.write(removed.removers[i]);
}

Status read_body(ByteReader& reader, Propose& propose) {
  propose.round = reader.read<uint32_t>();
  propose.waits_ms = reader.read<uint32_t>();
  if (!read_departures(reader, propose.departures)) return corrupt("propose: departures");
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > reform_joiners_max) return corrupt("propose: number of joiners");
  for (uint32_t i = 0; i < count; ++i) {
    MemberRecord joiner;
    if (!read_member(reader, joiner)) return corrupt(concat("propose: joiner ", i));
    propose.joiners.push_back(std::move(joiner));
  }
  return {};
}

Status read_body(ByteReader& reader, Commit& commit) {
  if (!read_departures(reader, commit.departures)) return corrupt("commit: departures");
  return read_roster(reader, commit.roster);
}

Status read_body(ByteReader& reader, Removed& removed) {
  removed.epoch = reader.read<uint32_t>();
  removed.survivors = reader.read<uint32_t>();
  removed.age_ms = reader.read<uint32_t>();
  if (!read_departure(reader, removed.departure)) return corrupt("removed: departure");
  const auto count = reader.read<uint32_t>();
  if (!reader.ok() || count > removers_max) return corrupt("removed: number of removers");
  for (uint32_t i = 0; i < count; ++i) {
    const auto rank = reader.read<uint32_t>();
    if (!reader.ok() || rank >= world_size_max) return corrupt(concat("removed: remover ", i));
    removed.removers.push_back(rank);
  }
  return {};
}

template <typename Body>
Result<ReformMessage> read_message(ByteReader& reader, const EpochName& base) {
  Body body;
  if (auto status = read_body(reader, body); !status.ok()) return status;
  if (!reader.done()) return corrupt(concat(reader.left(), " bytes too many"));
  return ReformMessage{base, std::move(body)};
}

}  // namespace

EpochName name_of(const Roster& roster) { return {roster.epoch, digest(roster)}; }

std::string to_string(const Departure& departure) {
  const std::string reporter = concat("rank ", departure.reporter);
  switch (departure.cause) {
    case Departure::Cause::lost: return reporter + " lost the link to it";
    case Departure::Cause::left: return "it had continued the group without " + reporter;
    case Departure::Cause::dead: return "its process has ended or has left, as " + reporter + " knows";
    case Departure::Cause::unreachable: return concat(reporter, " could not reach it for ", departure.waited_ms, " ms");
    case Departure::Cause::silent: return concat("it did not answer ", reporter, " for ", departure.waited_ms, " ms");
  }
  return "unknown";
}

Bytes encode(const ReformMessage& message) {
  ByteWriter writer;
  writer.write(reform_version).write(static_cast<uint8_t>(message.body.index() + 1));
  writer.write(message.base.epoch).write(message.base.digest);
  std::visit([&](const auto& body) { write_body(writer, body); }, message.body);
  return std::move(writer).take();
}

Result<ReformMessage> decode_reform(ByteView bytes) {
  ByteReader reader(bytes);
  const auto version = reader.read<uint8_t>();
  const auto kind = reader.read<uint8_t>();
  EpochName base;
  base.epoch = reader.read<uint32_t>();
  base.digest = reader.read<uint64_t>();
  if (!reader.ok()) return corrupt("truncated");
  if (version != reform_version) return corrupt(concat("version ", version));
  switch (static_cast<Kind>(kind)) {
    case Kind::propose: return read_message<Propose>(reader, base);
    case Kind::commit: return read_message<Commit>(reader, base);
    case Kind::removed: return read_message<Removed>(reader, base);
  }
  return corrupt(concat("kind ", kind));
}

}  // namespace unisono

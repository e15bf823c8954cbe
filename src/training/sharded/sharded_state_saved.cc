// Converts a sharded state to bytes and back, for checkpoints. The object that loads a state knows how large it must be.
// Therefore forged numbers in the bytes cannot decide how much is read.
#include <array>
#include <string>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"
#include "training/sharded/sharded_state.h"

namespace unisono {
namespace {

constexpr std::array<char, 4> magic{'U', 'S', 'H', 'S'};
constexpr uint32_t format_version = 1;

Status corrupt(const std::string& why) { return {Code::corrupt, "a checkpoint of a sharded state " + why}; }

// Properties that must be the same in the saved state and in the object that loads it.
struct Identity {
  uint64_t elements = 0;
  uint32_t world = 0, datagram_bytes = 0, self = 0, state_count = 0;
  uint64_t codec = 0;
};

template <typename Visit>
void each_field(const Identity& identity, Visit visit) {
  visit(identity.elements, "elements");
  visit(identity.world, "ranks");
  visit(identity.datagram_bytes, "datagram bytes");
  visit(identity.self, "rank");
  visit(identity.state_count, "optimizer states per element");
  visit(identity.codec, "codec hash");
}

Identity identity_of(const RangeGeometry& geometry, Rank self, uint32_t state_count) {
  const auto& cut = geometry.cut();
  const auto text = to_string(cut.codec);
  return {cut.elements, cut.world, cut.datagram_bytes, self, state_count, hash_of(std::as_bytes(std::span(text)))};
}

// Returns invalid if a property differs. The text names the first of them.
Status check(ByteReader& reader, const Identity& mine) {
  Status status;
  each_field(mine, [&](auto expected, const char* what) {
    const auto found = reader.read<decltype(expected)>();
    if (found == expected || !status.ok()) return;
    status = {Code::invalid,
              concat("a checkpoint of a sharded state: ", what, " = ", found, ", and this state has ", expected)};
  });
  return status;
}

template <typename T>
void write(ByteWriter& writer, std::span<T> values) {
  for (const auto value : values) writer.write(value);
}

template <typename T>
void read(ByteReader& reader, std::span<T> values) {
  for (auto& value : values) value = reader.read<T>();
}

constexpr size_t fixed_bytes = sizeof(magic) + sizeof(format_version) + 2 * sizeof(uint64_t) + 5 * sizeof(uint32_t);

}  // namespace

Bytes ShardedState::save() const {
  ByteWriter writer;
  writer.write(magic).write(format_version);
  each_field(identity_of(geometry_, self_, optimizer_->state_count()), [&](auto value, const char*) { writer.write(value); });
  writer.write(step_);
  write(writer, std::span(versions_));
  write(writer, std::span(parameters_));
  write(writer, std::span(own_));
  for (uint32_t i = 0; i < optimizer_->state_count(); ++i) write(writer, optimizer_->state(i));
  writer.write(hash_of(writer.view()));
  return std::move(writer).take();
}

Status ShardedState::load(ByteView saved) {
  if (saved.size() < sizeof(uint64_t)) return corrupt(concat("has only ", saved.size(), " bytes"));
  const auto body = saved.first(saved.size() - sizeof(uint64_t));
  ByteReader reader(body), end(saved.last(sizeof(uint64_t)));
  if (reader.read<std::array<char, 4>>() != magic) return corrupt("has a wrong magic number");
  if (const auto found = reader.read<uint32_t>(); reader.ok() && found != format_version)
    return corrupt(concat("has version ", found, "; this build reads version ", format_version));
  if (end.read<uint64_t>() != hash_of(body)) return corrupt("is truncated or damaged");
  if (auto status = check(reader, identity_of(geometry_, self_, optimizer_->state_count())); !status.ok()) return status;
  const size_t values = parameters_.size() + own_.size() * (1 + size_t{optimizer_->state_count()});
  const size_t expected = fixed_bytes + sizeof(uint32_t) * versions_.size() + sizeof(float) * values;
  if (body.size() != expected) return corrupt(concat("has ", body.size(), " bytes instead of ", expected));
  const auto step = reader.read<uint32_t>();
  // The version of a range must not be newer than the step of the state. Otherwise the range would refuse all deliveries until
  // that step.
  auto versions = reader;
  for (size_t i = 0; i < versions_.size(); ++i) {
    if (const auto found = versions.read<uint32_t>(); found > step)
      return corrupt(concat("of step ", step, " has a range of step ", found));
  }
  step_ = step;
  held_ = 0;
  read(reader, std::span(versions_));
  read(reader, std::span(parameters_));
  read(reader, std::span(own_));
  for (uint32_t i = 0; i < optimizer_->state_count(); ++i) read(reader, optimizer_->state(i));
  return {};
}

}  // namespace unisono

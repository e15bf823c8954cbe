#include "training/reducer/feedback_checkpoint.h"

#include <array>
#include <string>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"

namespace unisono {
namespace {

constexpr std::array<char, 4> magic{'U', 'E', 'F', 'B'};
constexpr uint32_t version = 2;  // version 2 added FeedbackState::warm
constexpr size_t name_bytes_max = 4096;

// Returns those arrays of a tensor's state that are either empty or have as many elements as the tensor.
template <typename State>
auto arrays_of(State& state) {
  return std::array{&state.residual, &state.momentum, &state.known, &state.mean};
}

void write(ByteWriter& writer, const std::vector<float>& array) {
  writer.write(static_cast<uint64_t>(array.size()));
  for (const float value : array) writer.write(value);
}

void write(ByteWriter& writer, const std::string& name, const FeedbackState& state) {
  writer.write_string(name);
  writer.write(state.elements);
  for (const auto* array : arrays_of(state)) write(writer, *array);
  write(writer, state.warm);
}

Status corrupt(const std::string& why) { return {Code::corrupt, "a checkpoint of error feedback " + why}; }

bool read(ByteReader& reader, std::vector<float>& array) {
  const auto count = reader.read<uint64_t>();
  if (!reader.ok() || count > reader.left() / sizeof(float)) return false;
  array.resize(count);
  for (float& value : array) value = reader.read<float>();
  return reader.ok();
}

bool read(ByteReader& reader, std::string& name, FeedbackState& state) {
  name = reader.read_string(name_bytes_max);
  state.elements = reader.read<uint64_t>();
  for (auto* array : arrays_of(state)) {
    if (!read(reader, *array) || (!array->empty() && array->size() != state.elements)) return false;
  }
  return read(reader, state.warm);
}

}  // namespace

uint64_t digest(const ArcOptions& arc, const FeedbackOptions& feedback) {
  ByteWriter writer;
  writer.write(arc.rule.ratio_ppm)
      .write(static_cast<uint8_t>(arc.rule.rounding))
      .write(arc.rule.rank)
      .write(arc.rule.max_payload_ppm)
      .write(arc.rule.min_elements);
  writer.write(arc.seed)
      .write(arc.refresh_every)
      .write(static_cast<uint8_t>(arc.random))
      .write(static_cast<uint8_t>(arc.exact));
  writer.write(static_cast<uint8_t>(feedback.kind)).write(feedback.kind == Feedback::ef21m ? feedback.eta : 0.0f);
  return hash_of(writer.view());
}

uint64_t digest(const PowerOptions& power, const FeedbackOptions& feedback) {
  ByteWriter writer;
  writer.write_string("power_sgd").write(power.rank).write(power.rule.max_payload_ppm).write(power.rule.min_elements);
  writer.write(power.seed).write(static_cast<uint8_t>(feedback.kind));
  return hash_of(writer.view());
}

Bytes encode(const FeedbackCheckpoint& checkpoint) {
  ByteWriter writer;
  writer.write(magic)
      .write(version)
      .write(checkpoint.world)
      .write(checkpoint.rank)
      .write(checkpoint.options)
      .write(checkpoint.step);
  writer.write(static_cast<uint64_t>(checkpoint.store.size()));
  for (const auto& [name, state] : checkpoint.store) write(writer, name, state);
  writer.write(hash_of(writer.view()));
  return std::move(writer).take();
}

Result<FeedbackCheckpoint> decode_checkpoint(ByteView bytes) {
  if (bytes.size() < sizeof(uint64_t)) return corrupt(concat("has only ", bytes.size(), " bytes"));
  const auto body = bytes.first(bytes.size() - sizeof(uint64_t));
  ByteReader reader(body), end(bytes.last(sizeof(uint64_t)));
  if (reader.read<std::array<char, 4>>() != magic) return corrupt("has a wrong magic number");
  if (const auto found = reader.read<uint32_t>(); found != version)
    return corrupt(concat("has version ", found, "; this build reads version ", version));
  if (end.read<uint64_t>() != hash_of(body)) return corrupt("is truncated or damaged");
  FeedbackCheckpoint checkpoint;
  checkpoint.world = reader.read<uint32_t>();
  checkpoint.rank = reader.read<uint32_t>();
  checkpoint.options = reader.read<uint64_t>();
  checkpoint.step = reader.read<uint64_t>();
  const auto count = reader.read<uint64_t>();
  for (uint64_t i = 0; i < count; ++i) {
    std::string name;
    FeedbackState state;
    if (!read(reader, name, state)) return corrupt(concat("ends in tensor ", i, " of ", count));
    if (!checkpoint.store.emplace(std::move(name), std::move(state)).second) return corrupt("has a tensor twice");
  }
  if (!reader.done()) return corrupt(concat("has ", reader.left(), " bytes too many"));
  return checkpoint;
}

Status check(const FeedbackCheckpoint& checkpoint, uint32_t world, uint32_t rank, uint64_t options) {
  const auto differs = [](const char* what, uint32_t then, uint32_t now) {
    return Status(Code::invalid, concat("roster_changed: the checkpoint of error feedback was written by ", what, " ", then,
                                        ", and this is ", what, " ", now));
  };
  if (checkpoint.world != world) return differs("a world of", checkpoint.world, world);
  if (checkpoint.rank != rank) return differs("rank", checkpoint.rank, rank);
  if (checkpoint.options != options)
    return {Code::invalid, "config_mismatch: the checkpoint of error feedback was written with other options of compression"};
  return {};
}

}  // namespace unisono

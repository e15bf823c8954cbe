// Converts codecs to and from text such as "int4:group=128".
#include <array>
#include <charconv>
#include <functional>
#include <vector>

#include "base/concat.h"
#include "base/split.h"
#include "unisono/codec_facts.h"

namespace unisono {
namespace {

using Kind = StepCodec::Kind;
using Spikes = StepCodec::Spikes;

constexpr const char* metadata_names[] = {"f16", "bf16", "f32", "auto"};
constexpr const char* spikes_names[] = {"off", "on", "auto"};

std::array<StepCodec*, 3> steps_of(Codec& codec) { return {&codec.reduce, &codec.across, &codec.gather}; }
std::array<const StepCodec*, 3> steps_of(const Codec& codec) { return {&codec.reduce, &codec.across, &codec.gather}; }

// Lists the names of those codecs for which holds(facts) is true, as ", plain, f16".
std::string codec_list(auto holds) {
  std::string list;
  for (const auto& facts : codec_table) list += holds(facts) ? std::string(", ") + facts.name : std::string();
  return list;
}

Status wrong(std::string_view what, std::string_view value, std::string_view allowed) {
  return {Code::invalid, "codec: " + std::string(what) + " \"" + std::string(value) + "\" is none of " + std::string(allowed)};
}

// Returns 0 if the text is not a number.
uint32_t number(std::string_view text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : 0;
}

template <size_t count>
int index_of(const char* const (&names)[count], std::string_view text) {
  for (size_t i = 0; i < count; ++i) {
    if (text == names[i]) return static_cast<int>(i);
  }
  return -1;
}

// Replaces the aliases fp16 and fp32 with the usual names of these types.
std::string_view usual(std::string_view text) {
  if (text == "fp16") return "f16";
  if (text == "fp32") return "f32";
  return text;
}

// Calls set(step, value) for each step. `text` has one to three values, which are separated by "/":
// - A single value is used for all steps.
// - Of two values, the first is used for reduce and across, the second for gather.
// - Three values are used for reduce, across and gather, in this order.
using SetStep = std::function<Status(StepCodec& step, std::string_view value)>;
Status for_each_step(Codec& codec, std::string_view what, std::string_view text, const SetStep& set) {
  const auto values = split(text, '/');
  if (values.size() > 3)
    return {Code::invalid,
            "codec: " + std::string(what) + " \"" + std::string(text) + "\" has more than three steps: reduce/across/gather"};
  const auto steps = steps_of(codec);
  for (size_t i = 0; i < steps.size(); ++i) {
    const size_t at = values.size() == 3 ? i : values.size() == 2 ? i / 2 : 0;
    if (auto status = set(*steps[i], values[at]); !status.ok()) return status;
  }
  return {};
}

// Reads a number of bits such as "8", or the name of a codec that has no options, such as "plain".
Status set_bits(StepCodec& step, std::string_view value) {
  if (const auto* const facts = find_codec(value); facts != nullptr && !facts->has_options) {
    step.kind = facts->kind;
    return {};
  }
  const auto bits = number(value);
  if (bits < 2 || bits > 8)
    return wrong("bits", value, "2 … 8" + codec_list([](const CodecFacts& f) { return !f.has_options; }));
  step.kind = Kind::quantize;
  step.bits = static_cast<uint8_t>(bits);
  return {};
}

Status set_name(StepCodec& step, std::string_view value) {
  if (value == "auto" || value == "quantize") return set_bits(step, "8");
  if (value.starts_with("int")) {
    if (set_bits(step, value.substr(3)).ok() && step.kind == Kind::quantize) return {};
  } else if (const auto* const facts = find_codec(value); facts != nullptr) {
    step.kind = facts->kind;
    return {};
  }
  return wrong("name", value, "int2 … int8, auto" + codec_list([](const CodecFacts&) { return true; }));
}

Status set_group(StepCodec& step, std::string_view value) {
  const auto group = number(value);
  if (group != 32 && group != 64 && group != 128 && group != 256) return wrong("group", value, "32, 64, 128, 256");
  step.group = static_cast<uint16_t>(group);
  return {};
}

Status set_metadata(StepCodec& step, std::string_view value) {
  const int index = index_of(metadata_names, usual(value));
  if (index < 0) return wrong("metadata", value, "f16, bf16, f32, auto");
  step.metadata = static_cast<StepCodec::Metadata>(index);
  return {};
}

Status set_spikes(StepCodec& step, std::string_view value) {
  const int index = index_of(spikes_names, value);
  if (index < 0) return wrong("spikes", value, "on, off, auto");
  step.spikes = static_cast<Spikes>(index);
  return {};
}

Status set_option(Codec& codec, std::string_view option) {
  const auto equals = option.find('=');
  if (equals == option.npos)
    return {Code::invalid, "codec: \"" + std::string(option) + "\" is not an option; options look like bits=4"};
  const auto key = option.substr(0, equals), value = option.substr(equals + 1);
  if (key == "bits") return for_each_step(codec, key, value, set_bits);
  if (key == "group") return for_each_step(codec, key, value, set_group);
  if (key == "metadata") return for_each_step(codec, key, value, set_metadata);
  if (key == "spikes") return for_each_step(codec, key, value, set_spikes);
  if (key == "own_exact") {
    if (value != "on" && value != "off") return wrong(key, value, "on, off");
    codec.own_exact = value == "on";
    return {};
  }
  if (key == "on_overflow") {
    if (value != "saturate" && value != "poison") return wrong(key, value, "saturate, poison");
    codec.poison = value == "poison";
    return {};
  }
  return wrong("option", key, "bits, group, metadata, spikes, own_exact, on_overflow");
}

std::string name_of(const StepCodec& step) {
  const auto& facts = facts_of(step.kind);
  return facts.has_options ? concat("int", step.bits) : facts.name;
}

// Returns the text of an option of the quantised steps, such as ",group=128/32". The text is empty if the option has its
// default value in all steps.
template <typename Value>
std::string list(const Codec& codec, std::string_view key, std::string_view usual, const Value& value) {
  const auto steps = steps_of(codec);
  std::array<std::string, 3> values;
  for (size_t i = 0; i < steps.size(); ++i)
    values[i] = facts_of(steps[i]->kind).has_options ? value(*steps[i]) : std::string(usual);
  if (values[0] == usual && values[1] == usual && values[2] == usual) return {};
  std::string text = "," + std::string(key) + "=" + values[0];
  if (values[1] != values[0]) text += "/" + values[1] + "/" + values[2];
  else if (values[2] != values[0]) text += "/" + values[2];
  return text;
}

}  // namespace

Result<Codec> Codec::parse(std::string_view text) {
  Codec codec;
  const auto colon = std::min(text.find(':'), text.size());
  if (auto status = for_each_step(codec, "name", text.substr(0, colon), set_name); !status.ok()) return status;
  if (colon == text.size()) return codec;
  for (const auto option : split(text.substr(colon + 1), ',')) {
    if (auto status = set_option(codec, option); !status.ok()) return status;
  }
  return codec;
}

std::string Codec::to_string() const {
  std::string text = name_of(reduce);
  if (name_of(across) != text) text += "/" + name_of(across) + "/" + name_of(gather);
  else if (name_of(gather) != text) text += "/" + name_of(gather);
  std::string options = list(*this, "group", "128", [](const StepCodec& s) { return std::to_string(s.group); });
  options += list(*this, "metadata", "auto",
                  [](const StepCodec& s) { return std::string(metadata_names[static_cast<int>(s.metadata)]); });
  options +=
      list(*this, "spikes", "auto", [](const StepCodec& s) { return std::string(spikes_names[static_cast<int>(s.spikes)]); });
  if (own_exact) options += ",own_exact=on";
  if (poison) options += ",on_overflow=poison";
  if (!options.empty()) options[0] = ':';
  return text + options;
}

}  // namespace unisono

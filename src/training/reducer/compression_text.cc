// Converts compression options to and from text, and checks them.
#include <array>
#include <cmath>
#include <string>

#include "base/option_text.h"
#include "compressors/row_rule.h"
#include "unisono/compression.h"

namespace unisono {
namespace {

using option_text::set_choice;
using option_text::set_number;
using option_text::shortest;
using option_text::wrong;

constexpr std::array method_names{"dense", "arc", "random-k", "power_sgd"};
constexpr std::array feedback_names{"none", "ef14", "ef21", "ef21m"};

Status set_codec(Codec& codec, std::string_view key, std::string_view value) {
  auto parsed = Codec::parse(value);
  if (!parsed.ok()) return wrong(std::string(key) + ": " + parsed.status().message());
  codec = *parsed;
  return {};
}

// Parses a schedule of ratios such as "0.5@2000/0.2@3000".
Status set_schedule(std::vector<Compression::RatioFrom>& schedule, std::string_view text) {
  schedule.clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    const auto part = text.substr(begin, end - begin);
    const auto at = part.find('@');
    if (at == part.npos)
      return wrong("schedule=" + std::string(text) + ": parts look like 0.5@2000, a ratio and the step from which it holds");
    auto& entry = schedule.emplace_back();
    if (auto status = set_number(entry.ratio, "schedule", part.substr(0, at)); !status.ok()) return status;
    if (auto status = set_number(entry.step, "schedule", part.substr(at + 1)); !status.ok()) return status;
    begin = end + 1;
  }
  return {};
}

const std::vector<option_text::Option<Compression>>& all_options() {
  constexpr std::array off_on{"off", "on"};
  static const std::vector<option_text::Option<Compression>> options{
      {"ratio", [](auto& c, auto k, auto v) { return set_number(c.ratio, k, v); }},
      {"rank", [](auto& c, auto k, auto v) { return set_number(c.rank, k, v); }},
      {"round",
       [](auto& c, auto k, auto v) {
         return set_choice(c.round_down, k, v, std::array{"up", "down"});
       }},
      {"seed", [](auto& c, auto k, auto v) { return set_number(c.seed, k, v); }},
      {"feedback", [](auto& c, auto k, auto v) { return set_choice(c.feedback, k, v, feedback_names); }},
      {"eta", [](auto& c, auto k, auto v) { return set_number(c.eta, k, v); }},
      {"start", [](auto& c, auto k, auto v) { return set_number(c.start_step, k, v); }},
      {"schedule", [](auto& c, auto, auto v) { return set_schedule(c.schedule, v); }},
      {"max_payload", [](auto& c, auto k, auto v) { return set_number(c.max_payload, k, v); }},
      {"min_elements", [](auto& c, auto k, auto v) { return set_number(c.min_elements, k, v); }},
      {"auto_off", [=](auto& c, auto k, auto v) { return set_choice(c.auto_off, k, v, off_on); }},
      {"values", [](auto& c, auto k, auto v) { return set_codec(c.values, k, v); }},
      {"values_schedule", [](auto& c, auto k, auto v) { return set_choice(c.values_schedule, k, v, schedule_words); }},
      {"sketch", [](auto& c, auto k, auto v) { return set_codec(c.sketch, k, v); }},
      {"refresh", [](auto& c, auto k, auto v) { return set_number(c.refresh_every, k, v); }},
      {"absorb", [=](auto& c, auto k, auto v) { return set_choice(c.absorb_codec_error, k, v, off_on); }},
      {"nonfinite",
       [](auto& c, auto k, auto v) {
         return set_choice(c.on_nonfinite, k, v, std::array{"skip", "poison"});
       }},
      {"adaptive", [=](auto& c, auto k, auto v) { return set_choice(c.adaptive_optimizer, k, v, off_on); }},
  };
  return options;
}

// PowerSGD does not send rows, so the options about rows have no effect. It is an error to set one of them.
Status check_power_sgd(const Compression& c) {
  using enum Compression::Feedback;
  const Compression usual;
  const std::pair<bool, const char*> without_effect[] = {
      {c.ratio != usual.ratio, "ratio"}, {!c.schedule.empty(), "schedule"},
      {c.round_down, "round"},           {c.refresh_every != 0, "refresh"},
      {c.eta != usual.eta, "eta"},       {!c.values.is_plain(), "values"},
      {!c.sketch.is_plain(), "sketch"},  {c.absorb_codec_error != usual.absorb_codec_error, "absorb"},
  };
  for (const auto& [given, key] : without_effect) {
    if (given)
      return wrong(std::string(key) +
                   " does not go with power_sgd, which sends two factors in fp32; rank says how many columns they have");
  }
  if (c.feedback != none && c.feedback != ef14)
    return wrong("feedback=" + std::string(feedback_names[static_cast<size_t>(c.feedback)]) +
                 " does not go with power_sgd; it takes none or ef14");
  return {};
}

}  // namespace

Result<Compression> Compression::parse(std::string_view text) {
  Compression c;
  const auto colon = std::min(text.find(':'), text.size());
  if (auto status = set_choice(c.method, "method", text.substr(0, colon), method_names); !status.ok()) return status;
  if (colon < text.size()) {
    if (auto status = option_text::set_options(c, text.substr(colon + 1), all_options(), "ratio=0.2"); !status.ok())
      return status;
  }
  if (auto status = c.check(); !status.ok()) return status;
  return c;
}

std::string Compression::to_string() const {
  const Compression usual;
  option_text::Writer options;
  const auto add = [&](bool differs, const char* key, const std::string& value) { options.add(differs, key, value); };
  const auto switched = [](bool on) { return on ? "on" : "off"; };
  const auto codec_name = [](const Codec& codec) {
    const auto name = codec.to_string();
    return name.substr(0, name.find(':'));
  };
  add(ratio != usual.ratio, "ratio", shortest(ratio));
  add(rank != usual.rank, "rank", shortest(rank));
  add(round_down, "round", "down");
  add(seed != usual.seed, "seed", shortest(seed));
  add(feedback != usual.feedback, "feedback", feedback_names[static_cast<size_t>(feedback)]);
  add(eta != usual.eta, "eta", shortest(eta));
  add(start_step != usual.start_step, "start", shortest(start_step));
  std::string steps;
  for (const auto& entry : schedule) steps += (steps.empty() ? "" : "/") + shortest(entry.ratio) + "@" + shortest(entry.step);
  add(!schedule.empty(), "schedule", steps);
  add(max_payload != usual.max_payload, "max_payload", shortest(max_payload));
  add(min_elements != usual.min_elements, "min_elements", shortest(min_elements));
  add(auto_off != usual.auto_off, "auto_off", switched(auto_off));
  add(!values.is_plain(), "values", codec_name(values));
  add(values_schedule != usual.values_schedule, "values_schedule", schedule_words[static_cast<size_t>(values_schedule)]);
  add(!sketch.is_plain(), "sketch", codec_name(sketch));
  add(refresh_every != usual.refresh_every, "refresh", shortest(refresh_every));
  add(absorb_codec_error != usual.absorb_codec_error, "absorb", switched(absorb_codec_error));
  add(on_nonfinite != usual.on_nonfinite, "nonfinite", "poison");
  add(adaptive_optimizer, "adaptive", "on");
  return method_names[static_cast<size_t>(method)] + options.text();
}

Status Compression::check() const {
  if (static_cast<size_t>(method) >= method_names.size() || static_cast<size_t>(feedback) >= feedback_names.size() ||
      static_cast<uint8_t>(on_nonfinite) > 1 || static_cast<size_t>(values_schedule) >= schedule_words.size())
    return wrong("a method, feedback or outcome that does not exist");
  if (auto parts = parts_per_million(ratio); !parts.ok()) return parts.status();
  if (rank == 0) return wrong(method == Method::power_sgd ? "factors of rank 0" : "a sketch of rank 0");
  if (!(eta > 0 && eta <= 1)) return wrong("eta = " + shortest(eta) + " is not in (0, 1]");
  if (auto parts = parts_per_million(max_payload); !parts.ok())
    return wrong("max_payload = " + shortest(max_payload) + " is not in (0, 1]");
  uint64_t from = 0;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (i > 0 && schedule[i].step <= from)
      return wrong("the schedule's steps do not ascend: " + shortest(schedule[i].step) + " after " + shortest(from));
    from = schedule[i].step;
    if (auto parts = parts_per_million(schedule[i].ratio); !parts.ok()) return parts.status();
  }
  return method == Method::power_sgd ? check_power_sgd(*this) : Status();
}

}  // namespace unisono

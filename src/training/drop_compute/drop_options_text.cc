// Converts DropOptions to and from text, and checks them.
#include <array>
#include <cmath>
#include <span>
#include <string>

#include "base/concat.h"
#include "base/option_text.h"
#include "unisono/drop_compute.h"

namespace unisono {
namespace {

using option_text::set_choice;
using option_text::set_number;
using option_text::wrong;

constexpr std::array rule_names{"after", "before", "at"};
constexpr std::array normalize_names{"max", "computed"};
constexpr std::array tail_names{"defer", "discard"};
constexpr std::array objective_names{"step_mean", "total"};
constexpr std::array search_names{"exact", "grid"};
constexpr double seconds_max = 1e6;  // the largest allowed threshold, in seconds (eleven days)

Status wrong_threshold(const std::string& what) { return {Code::invalid, "invalid_threshold: " + what}; }

Status set_recalibrate(uint64_t& every, std::string_view key, std::string_view value) {
  if (value == "never") return every = DropOptions::never, Status();
  if (value == "on_drift") return every = DropOptions::on_drift, Status();
  auto status = set_number(every, key, value);
  return status.ok() && every > 0
             ? Status()
             : wrong("recalibrate=" + std::string(value) + " is none of never, on_drift, or a number of steps");
}

const std::vector<option_text::Option<DropOptions>>& all_options() {
  static const std::vector<option_text::Option<DropOptions>> options{
      {"rule", [](auto& o, auto k, auto v) { return set_choice(o.rule, k, v, rule_names); }},
      {"lag", [](auto& o, auto k, auto v) { return set_number(o.lag, k, v); }},
      {"min_computed", [](auto& o, auto k, auto v) { return set_number(o.min_computed, k, v); }},
      {"normalize", [](auto& o, auto k, auto v) { return set_choice(o.normalize, k, v, normalize_names); }},
      {"tail", [](auto& o, auto k, auto v) { return set_choice(o.tail, k, v, tail_names); }},
      {"warmup", [](auto& o, auto k, auto v) { return set_number(o.warmup_steps, k, v); }},
      {"calibration", [](auto& o, auto k, auto v) { return set_number(o.calibration_steps, k, v); }},
      {"min_calibration", [](auto& o, auto k, auto v) { return set_number(o.min_calibration_steps, k, v); }},
      {"objective", [](auto& o, auto k, auto v) { return set_choice(o.objective, k, v, objective_names); }},
      {"search", [](auto& o, auto k, auto v) { return set_choice(o.search, k, v, search_names); }},
      {"slack", [](auto& o, auto k, auto v) { return set_number(o.slack, k, v); }},
      {"max_drop", [](auto& o, auto k, auto v) { return set_number(o.max_drop, k, v); }},
      {"min_gain", [](auto& o, auto k, auto v) { return set_number(o.min_gain, k, v); }},
      {"recalibrate", [](auto& o, auto k, auto v) { return set_recalibrate(o.recalibrate, k, v); }},
      {"window", [](auto& o, auto k, auto v) { return set_number(o.window, k, v); }},
  };
  return options;
}

Status set_threshold(DropOptions& options, std::string_view text) {
  using Threshold = DropOptions::Threshold;
  if (text == "off") return options.threshold = Threshold::off, Status();
  if (text == "auto") return options.threshold = Threshold::automatic, Status();
  if (!set_number(options.seconds, "threshold", text).ok())
    return wrong_threshold("\"" + std::string(text) + "\" is none of off, auto, or a number of seconds");
  // A value that is not positive means that there is no threshold. The published code of DropCompute does the same.
  options.threshold = options.seconds <= 0 ? Threshold::off : Threshold::fixed;
  if (options.threshold == Threshold::off) options.seconds = 0;
  return {};
}

}  // namespace

Result<DropOptions> DropOptions::parse(std::string_view text) {
  DropOptions options;
  const auto colon = std::min(text.find(':'), text.size());
  if (auto status = set_threshold(options, text.substr(0, colon)); !status.ok()) return status;
  if (colon < text.size()) {
    if (auto status = option_text::set_options(options, text.substr(colon + 1), all_options(), "rule=after"); !status.ok())
      return status;
  }
  if (auto status = options.check(~uint32_t{0}); !status.ok()) return status;
  return options;
}

std::string DropOptions::to_string() const {
  const DropOptions usual;
  option_text::Writer options;
  const auto named = [&](auto value, auto usually, const char* key, std::span<const char* const> names) {
    if (value != usually && static_cast<size_t>(value) < names.size())
      options.add(true, key, names[static_cast<size_t>(value)]);
  };
  named(rule, usual.rule, "rule", rule_names);
  options.add_number(lag, usual.lag, "lag");
  options.add_number(min_computed, usual.min_computed, "min_computed");
  named(normalize, usual.normalize, "normalize", normalize_names);
  named(tail, usual.tail, "tail", tail_names);
  options.add_number(warmup_steps, usual.warmup_steps, "warmup");
  options.add_number(calibration_steps, usual.calibration_steps, "calibration");
  options.add_number(min_calibration_steps, usual.min_calibration_steps, "min_calibration");
  named(objective, usual.objective, "objective", objective_names);
  named(search, usual.search, "search", search_names);
  options.add_number(slack, usual.slack, "slack");
  options.add_number(max_drop, usual.max_drop, "max_drop");
  options.add_number(min_gain, usual.min_gain, "min_gain");
  options.add(recalibrate != usual.recalibrate, "recalibrate",
              recalibrate == never ? "never" : option_text::shortest(recalibrate));
  options.add_number(window, usual.window, "window");
  const auto first = threshold == Threshold::off         ? "off"
                     : threshold == Threshold::automatic ? "auto"
                                                         : option_text::shortest(seconds);
  return first + options.text();
}

Status DropOptions::check(uint32_t micro_batches) const {
  const auto below = [](auto value, const auto& names) { return static_cast<size_t>(value) < names.size(); };
  if (static_cast<uint8_t>(threshold) > 2 || !below(rule, rule_names) || !below(normalize, normalize_names) ||
      !below(tail, tail_names) || !below(objective, objective_names) || !below(search, search_names)) {
    return wrong("a rule, objective or other choice that does not exist");
  }
  if (threshold == Threshold::fixed && !(seconds > 0 && seconds <= seconds_max))
    return wrong_threshold(option_text::shortest(seconds) + " seconds; it is above zero and at most " +
                           option_text::shortest(seconds_max));
  if (micro_batches == 0) return wrong("a step of no micro-batches");
  if (min_computed > micro_batches)
    return wrong(concat("min_computed=", min_computed, " of ", micro_batches, " micro-batches"));
  if (rule != Rule::after && lag != 0) return wrong("lag is for the rule after");
  if (rule == Rule::at && min_computed > 1) return wrong("min_computed is not for the rule at, which may compute nothing");
  if (!(slack >= 0 && slack < 1)) return wrong("slack=" + option_text::shortest(slack) + " is not in [0, 1)");
  if (!(max_drop >= 0 && max_drop <= 1)) return wrong("max_drop=" + option_text::shortest(max_drop) + " is not in [0, 1]");
  if (!(min_gain >= 0 && std::isfinite(min_gain)))
    return wrong("min_gain=" + option_text::shortest(min_gain) + " is below zero or no number");
  if (window == 0) return wrong("window=0");
  if (calibration_steps == 0 || min_calibration_steps == 0) return wrong("calibration of no steps");
  if (min_calibration_steps > calibration_steps)
    return wrong(
        concat("too_few_steps: calibration=", calibration_steps, " is less than min_calibration=", min_calibration_steps));
  for (const auto count : replay) {
    if (count > micro_batches) return wrong(concat("replay of ", count, " of ", micro_batches, " micro-batches"));
  }
  return {};
}

}  // namespace unisono

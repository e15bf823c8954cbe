#include "lab/common/option_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cli/common/option_values.h"
#include "cli/common/text.h"

namespace unisono::lab {

using cli::add_choice;
using cli::invalid;
using cli::nearest_name;
using cli::parse_between;
using cli::parse_duration;
using cli::parse_number;

namespace {

constexpr DropRule all_rules[] = {DropRule::after, DropRule::before, DropRule::at};

}  // namespace

std::string_view rule_name(DropRule rule) {
  switch (rule) {
    case DropRule::after: return "after";
    case DropRule::before: return "before";
    case DropRule::at: break;
  }
  return "at";
}

std::vector<std::string> rule_names() {
  std::vector<std::string> names;
  for (const auto rule : all_rules) names.emplace_back(rule_name(rule));
  return names;
}

Result<std::vector<DropRule>> parse_rules(std::string_view text) {
  if (text == "all") return std::vector<DropRule>(std::begin(all_rules), std::end(all_rules));
  for (const auto rule : all_rules) {
    if (text == rule_name(rule)) return std::vector{rule};
  }
  const auto names = rule_names();
  const auto meant = nearest_name(text, names);
  return invalid(fmt::format("--rule '{}' is none of {}, all{}", text, fmt::join(names, ", "),
                             meant.empty() ? "" : fmt::format("; did you mean '{}'?", meant)));
}

Result<double> parse_seconds(std::string_view option, std::string_view text, bool positive) {
  const auto time = parse_duration(text);
  if (!time.ok()) return invalid(fmt::format("{} {}", option, time.status().message()));
  if (positive && *time == 0) return invalid(fmt::format("{} '{}': expected a time above 0, in whole ns", option, text));
  return static_cast<double>(*time) / static_cast<double>(second);
}

void add_drop_choice(CLI::App& app, DropChoiceOptions& o) {
  app.add_option(
         "--lag", o.lag,
         "after: look at the micro-batch that many before the last one, so that an accelerator's queue need not drain [0]")
      ->type_name("COUNT");
  app.add_option("--min-computed", o.min_computed, "after, before: micro-batches computed however late it is [1]")
      ->type_name("COUNT");
  add_choice(app, o.objective,
             {.names = "--objective",
              .value = "KIND",
              .meaning = "what the search maximises, S_step or S_total",
              .words = {"step_mean", "total"},
              .fallback = "step_mean"});
  app.add_option("--slack", o.slack, "share of the gain that is given up to drop less [0.002]")->type_name("SHARE");
  app.add_option("--max-drop", o.max_drop, "no threshold is chosen that would drop a larger share [0.1]")->type_name("SHARE");
  app.add_option("--min-gain", o.min_gain, "nothing is dropped if that gains less [0.01]")->type_name("SHARE");
}

Result<DropOptions> drop_choice_of(const DropChoiceOptions& o, uint32_t micro_batches_max) {
  DropOptions drop;
  drop.threshold = DropOptions::Threshold::automatic;
  if (!o.objective.empty()) {
    if (o.objective != "step_mean" && o.objective != "total")
      return invalid(fmt::format("--objective '{}' is none of step_mean, total", o.objective));
    drop.objective = o.objective == "total" ? DropOptions::Objective::total : DropOptions::Objective::step_mean;
  }
  for (const auto& [name, text, value] :
       {std::tuple{"--lag", &o.lag, &drop.lag}, {"--min-computed", &o.min_computed, &drop.min_computed}}) {
    if (text->empty()) continue;
    const auto count = parse_between(name, *text, 0, micro_batches_max);
    if (!count.ok()) return count.status();
    *value = static_cast<uint32_t>(*count);
  }
  for (const auto& [name, text, value] : {std::tuple{"--slack", &o.slack, &drop.slack},
                                          {"--max-drop", &o.max_drop, &drop.max_drop},
                                          {"--min-gain", &o.min_gain, &drop.min_gain}}) {
    if (text->empty()) continue;
    const auto share = parse_number(name, *text, 0, 1);
    if (!share.ok()) return share.status();
    *value = *share;
  }
  return drop;
}

std::string time_text(double seconds) {
  constexpr std::pair<double, const char*> units[] = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}};
  for (const auto& [scale, unit] : units) {
    // A time just below 1 s would be rounded to "1000 ms", so it is printed as "1 s". The other units are treated in the same
    // way.
    if (std::abs(seconds) >= scale * 0.999995) return fmt::format("{:.5g} {}", seconds / scale, unit);
  }
  // Times are whole nanoseconds, so a smaller value is 0 with a rounding error.
  return std::abs(seconds) < 1e-10 ? "0 s" : fmt::format("{:.5g} ns", seconds * 1e9);
}

std::string plural(uint64_t count, std::string_view word, std::string_view ending) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : ending);
}

std::string speedup_text(double speedup) { return fmt::format("{:.4f}", speedup); }

std::string percent_text(double share) { return fmt::format("{:.2f} %", 100 * share); }

std::vector<uint64_t> powers_of_two_to(uint64_t workers) {
  std::vector<uint64_t> all;
  for (uint64_t count = 2; count < workers; count *= 2) all.push_back(count);
  all.push_back(workers);
  return all;
}

}  // namespace unisono::lab

// Option values and number formats that `unisono-lab drop-compute plan`, `search` and `simulate` share. Performs no I/O.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command_line.h"
#include "unisono/drop_compute.h"
#include "unisono/status.h"

namespace unisono::lab {

using DropRule = DropOptions::Rule;

// Returns the name of a rule as users type it and reports print it: "after", "before" or "at".
std::string_view rule_name(DropRule rule);
std::vector<std::string> rule_names();
// Parses the name of one rule. The word "all" means all rules, in the order of rule_names().
Result<std::vector<DropRule>> parse_rules(std::string_view text);

// Parses an option value that is a time with a unit, and returns seconds. Error messages name the option. positive: true if 0
// is not allowed.
Result<double> parse_seconds(std::string_view option, std::string_view text, bool positive);

// The options that decide how a threshold is chosen, as the user typed them. If a value is empty, the default of DropOptions is
// used.
struct DropChoiceOptions {
  std::string lag = {}, min_computed = {}, objective = {}, slack = {}, max_drop = {}, min_gain = {};
};
void add_drop_choice(CLI::App& app, DropChoiceOptions& options);
// Returns DropOptions with an automatic threshold, and with the values of these options.
Result<DropOptions> drop_choice_of(const DropChoiceOptions& options, uint32_t micro_batches_max);

// Formats a time, such as "11.317 s", "250 ms" or "16 ns".
std::string time_text(double seconds);
// Formats a speedup with four decimals, such as "1.2500".
std::string speedup_text(double speedup);
// Formats a count with its noun, such as "1 step" or "3 steps".
std::string plural(uint64_t count, std::string_view word, std::string_view ending = "s");
// Formats a fraction as a percentage, such as "9.87 %".
std::string percent_text(double share);

// Returns the powers of two from 2 on that are below `workers`, then `workers` itself.
std::vector<uint64_t> powers_of_two_to(uint64_t workers);

}  // namespace unisono::lab

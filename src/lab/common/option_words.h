// The words that `unisono-lab drop-compute plan`, `search` and `simulate` share: rules, times, shares, and what decides about a
// threshold. Pure.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "cli/common/command_line.h"
#include "unisono/drop_compute.h"
#include "unisono/status.h"

namespace unisono::cli {

using DropRule = DropOptions::Rule;

// "after", "before", "at": as they are typed and printed.
std::string_view rule_name(DropRule rule);
std::vector<std::string> rule_names();
// Reads the name of one rule, or "all" for all rules in the order of rule_names().
Result<std::vector<DropRule>> parse_rules(std::string_view text);

// Reads the value of an option, a time with its unit, in seconds. Errors name the option. positive: 0 is an error.
Result<double> parse_seconds(std::string_view option, std::string_view text, bool positive);

// The options that decide which threshold is chosen, as typed. An empty one keeps the default of DropOptions.
struct DropChoiceOptions {
  std::string lag = {}, min_computed = {}, objective = {}, slack = {}, max_drop = {}, min_gain = {};
};
void add_drop_choice(CLI::App& app, DropChoiceOptions& options);
// The DropOptions of an automatic threshold.
Result<DropOptions> drop_choice_of(const DropChoiceOptions& options, uint32_t micro_batches_max);

// "11.317 s", "250 ms", "16 ns".
std::string time_text(double seconds);
// "1.2500".
std::string speedup_text(double speedup);
// "1 step", "3 steps".
std::string plural(uint64_t count, std::string_view word, std::string_view ending = "s");
// "9.87 %".
std::string percent_text(double share);

// The powers of two from 2 that are below `workers`, then `workers` itself.
std::vector<uint64_t> powers_of_two_to(uint64_t workers);

}  // namespace unisono::cli

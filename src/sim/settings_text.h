// Writes the settings of a scenario as one line of text, and reads such a line. The line has the form of the command line of
// `unisono simulate`, and can be used to replay a seed. The files in tests/seeds consist of such lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/scenario.h"
#include "unisono/status.h"

namespace unisono::sim {

struct SeedRange {
  uint64_t first = 0, last = 0;  // inclusive
};
// Parses text such as "17" or "0-9999".
Result<SeedRange> parse_seeds(std::string_view text);

struct SettingsLine {
  ScenarioSettings settings;
  SeedRange seeds;
};
// Returns text such as "all-reduce --peers 4 --faults kill --seeds 17". It contains only values that differ from their
// defaults. If it is parsed, the settings are the same again.
std::string to_text(const SettingsLine& line);
// Parses text in the form of to_text(). The options may be in any order, and sizes are in bytes. An error message contains the
// invalid word.
Result<SettingsLine> parse_settings(std::string_view text);

}  // namespace unisono::sim

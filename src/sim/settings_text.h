// A scenario as one line of words, as on the command line of `unisono simulate`: to replay a seed, and for tests/seeds.
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
// "17" or "0-9999".
Result<SeedRange> parse_seeds(std::string_view text);

struct SettingsLine {
  ScenarioSettings settings;
  SeedRange seeds;
};
// "all-reduce --peers 4 --faults kill --seeds 17": all values that are not defaults, so that parsing gives equal settings.
std::string to_text(const SettingsLine& line);
// Sizes in plain bytes; options as to_text() writes them, in any order. The message names the wrong word.
Result<SettingsLine> parse_settings(std::string_view text);

}  // namespace unisono::sim

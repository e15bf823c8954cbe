// A scenario as a line of words, the same as behind `unisono simulate`: for replaying a seed, and for tests/seeds.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sim/scenario.h"
#include "unisono/status.h"

namespace unisono::sim {

struct SeedRange {
  uint64_t first = 0, last = 0;  // both belong to it
};
// "17" or "0-9999".
Result<SeedRange> parse_seeds(std::string_view text);

struct SettingsLine {
  ScenarioSettings settings;
  SeedRange seeds;
};
// "all-reduce --peers 4 --faults kill --seeds 17"; everything that is not the default, so that parse gives the same settings.
std::string to_text(const SettingsLine& line);
// Sizes in plain bytes; options as to_text writes them, in any order. The message names the word that is wrong.
Result<SettingsLine> parse_settings(std::string_view text);

}  // namespace unisono::sim

// Formats a check of `unisono-lab simulate loss` as a line of the table and as JSON. Both reports use these functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/loss/loss_checks.h"

namespace unisono::lab {

// Formats a check as a line of the table. width: the width of the column that says what was measured.
std::string line_of(const LossCheck& check, int width);
// Returns the lines above the checks. formula: the title of the column with the expected values.
std::string head_of_checks(const std::string& explanation, int width, const std::string& formula);
nlohmann::ordered_json value_of(const LossCheck& check);
nlohmann::ordered_json finite(double value);
size_t count_of(std::span<const LossCheck> checks, CheckVerdict verdict);
nlohmann::ordered_json verdict_of(std::span<const LossCheck> checks);
std::string seeds_text(const std::vector<uint64_t>& seeds);

}  // namespace unisono::lab

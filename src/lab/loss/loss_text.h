// Helpers that the reports of `unisono-lab simulate loss` share: a check as a line for people, and as a value for programs.
// Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "lab/loss/loss_checks.h"

namespace unisono::cli {

// width: of what was measured.
std::string line_of(const LossCheck& check, int width);
// The line above them; `formula` names what is compared with.
std::string head_of_checks(const std::string& explanation, int width, const std::string& formula);
nlohmann::ordered_json value_of(const LossCheck& check);
nlohmann::ordered_json finite(double value);
size_t count_of(std::span<const LossCheck> checks, CheckVerdict verdict);
nlohmann::ordered_json verdict_of(std::span<const LossCheck> checks);
std::string seeds_text(const std::vector<uint64_t>& seeds);

}  // namespace unisono::cli

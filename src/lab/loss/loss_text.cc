#include "lab/loss/loss_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace unisono::lab {
namespace {

using Json = nlohmann::ordered_json;

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{:.6g}", std::abs(value) < 1e-12 ? 0 : value) : "-";
}
std::string short_number(double value) { return std::isfinite(value) ? fmt::format("{:.2g}", value) : "-"; }

}  // namespace

std::string line_of(const LossCheck& check, int width) {
  auto text =
      fmt::format(" {:<{}} {:>12} {:>10} {:>12} {:>10}  {:<7}", check.what, width, number(check.measured),
                  short_number(check.interval), number(check.formula), short_number(check.allowed), name(check.verdict));
  text += check.note.empty() ? "" : "  " + check.note;
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string head_of_checks(const std::string& explanation, int width, const std::string& formula) {
  return fmt::format("#\n# {}\n#{:<{}} {:>12} {:>10} {:>12} {:>10}\n", explanation, "", width, "measured", "+- (95 %)", formula,
                     "allowed");
}

Json finite(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json value_of(const LossCheck& check) {
  return {{"kind", "check"},
          {"group", check.group},
          {"what", check.what},
          {"measured", finite(check.measured)},
          {"interval", finite(check.interval)},
          {"formula", finite(check.formula)},
          {"allowed", finite(check.allowed)},
          {"verdict", check.verdict == CheckVerdict::none ? Json() : Json(name(check.verdict))},
          {"note", check.note.empty() ? Json() : Json(check.note)}};
}

size_t count_of(std::span<const LossCheck> checks, CheckVerdict verdict) {
  return static_cast<size_t>(
      std::count_if(checks.begin(), checks.end(), [&](const LossCheck& check) { return check.verdict == verdict; }));
}

Json verdict_of(std::span<const LossCheck> checks) {
  return {{"kind", "verdict"},
          {"ok", count_of(checks, CheckVerdict::ok)},
          {"off", count_of(checks, CheckVerdict::off)},
          {"unsure", count_of(checks, CheckVerdict::unsure)},
          {"controls", count_of(checks, CheckVerdict::control)}};
}

std::string seeds_text(const std::vector<uint64_t>& seeds) {
  return seeds.size() == 1 ? fmt::format("seed {}", seeds[0]) : fmt::format("seeds {}-{}", seeds.front(), seeds.back());
}

}  // namespace unisono::lab

// Parses, checks and prints DeliveryOptions.
#include <array>
#include <span>
#include <string>

#include "base/concat.h"
#include "base/option_text.h"
#include "unisono/delivery.h"

namespace unisono {
namespace {

using option_text::set_choice;
using option_text::set_number;
using option_text::shortest;
using option_text::wrong;
using std::chrono::microseconds;

constexpr std::array estimator_names{"stratified", "count", "count_all", "horvitz_thompson", "zero_fill"};
constexpr std::array on_empty_names{"auto", "hold", "own", "zero", "fail"};
constexpr microseconds deadline_longest = std::chrono::hours(24 * 30);  // 30 days, like timeout_max in base/clock.h
constexpr microseconds deadline_shortest{100};
constexpr uint64_t staging_min = 1u << 20;

struct Unit {
  const char* name;
  uint64_t scale;
};
constexpr Unit times[] = {{"us", 1}, {"ms", 1000}, {"s", 1'000'000}};
constexpr Unit sizes[] = {{"", 1}, {"K", 1u << 10}, {"M", 1u << 20}, {"G", 1u << 30}};

// Parses a number that is followed by one of the units, such as "20ms", "1.5s" or "256M".
Status set_quantity(uint64_t& quantity, std::string_view key, std::string_view value, std::span<const Unit> units,
                    const char* example) {
  const auto digits = std::min(value.find_first_not_of("0123456789."), value.size());
  for (const auto& unit : units) {
    if (value.substr(digits) != unit.name) continue;
    double number = 0;
    if (auto status = set_number(number, key, value.substr(0, digits)); !status.ok()) return status;
    if (number * static_cast<double>(unit.scale) > 1e18)
      return wrong(std::string(key) + "=" + std::string(value) + " is too large");
    return quantity = static_cast<uint64_t>(number * static_cast<double>(unit.scale) + 0.5), Status();
  }
  return wrong(std::string(key) + "=" + std::string(value) + ": expected a value such as " + example);
}

Status set_time(microseconds& time, std::string_view key, std::string_view value) {
  uint64_t quantity = 0;
  auto status = set_quantity(quantity, key, value, times, "20ms");
  time = microseconds(quantity);
  return status;
}

// Formats the quantity in the largest unit that gives a whole number.
std::string text_of(uint64_t quantity, std::span<const Unit> units) {
  for (size_t i = units.size(); i-- > 1;) {
    if (quantity % units[i].scale == 0 && quantity > 0) return concat(quantity / units[i].scale, units[i].name);
  }
  return concat(quantity, units[0].name);
}

std::string text_of(microseconds time) { return text_of(static_cast<uint64_t>(time.count()), times); }

const std::vector<option_text::Option<DeliveryOptions>>& all_options() {
  static const std::vector<option_text::Option<DeliveryOptions>> options{
      {"loss_budget", [](auto& o, auto k, auto v) { return set_number(o.loss_budget, k, v); }},
      {"estimator", [](auto& o, auto k, auto v) { return set_choice(o.estimator, k, v, estimator_names); }},
      {"on_empty", [](auto& o, auto k, auto v) { return set_choice(o.on_empty, k, v, on_empty_names); }},
      {"deadline", [](auto& o, auto k, auto v) { return set_time(o.deadline, k, v); }},
      {"deadline_max", [](auto& o, auto k, auto v) { return set_time(o.deadline_max, k, v); }},
      {"loss_off", [](auto& o, auto k, auto v) { return set_number(o.loss_off, k, v); }},
      {"staging", [](auto& o, auto k, auto v) { return set_quantity(o.staging_bytes_max, k, v, sizes, "256M"); }},
  };
  return options;
}

}  // namespace

Result<DeliveryOptions> DeliveryOptions::parse(std::string_view text) {
  DeliveryOptions options;
  if (text.empty()) return options;
  if (auto status = option_text::set_options(options, text, all_options(), "loss_budget=0.1"); !status.ok()) return status;
  if (auto status = options.check(); !status.ok()) return status;
  return options;
}

std::string DeliveryOptions::to_string() const {
  const DeliveryOptions usual;
  option_text::Writer options;
  const auto named = [&](auto value, auto usually, const char* key, std::span<const char* const> names) {
    if (value != usually && static_cast<size_t>(value) < names.size())
      options.add(true, key, names[static_cast<size_t>(value)]);
  };
  options.add_number(loss_budget, usual.loss_budget, "loss_budget");
  named(estimator, usual.estimator, "estimator", estimator_names);
  named(on_empty, usual.on_empty, "on_empty", on_empty_names);
  options.add(deadline != usual.deadline, "deadline", text_of(deadline));
  options.add(deadline_max != usual.deadline_max, "deadline_max", text_of(deadline_max));
  options.add_number(loss_off, usual.loss_off, "loss_off");
  options.add(staging_bytes_max != usual.staging_bytes_max, "staging", text_of(staging_bytes_max, sizes));
  // text() begins with a colon, which separates the options from a word before them. There is no such word here, so leave out
  // the colon.
  return options.text().empty() ? "" : options.text().substr(1);
}

Status DeliveryOptions::check() const {
  if (static_cast<size_t>(estimator) >= estimator_names.size() || static_cast<size_t>(on_empty) >= on_empty_names.size())
    return wrong("estimator or on_empty has an unknown value");
  if (!(loss_budget >= 0 && loss_budget <= 1)) return wrong("loss_budget=" + shortest(loss_budget) + " is not in [0, 1]");
  if (!(loss_off >= 0 && loss_off <= 1)) return wrong("loss_off=" + shortest(loss_off) + " is not in [0, 1]");
  if (deadline_max < deadline_shortest || deadline_max > deadline_longest)
    return wrong(
        concat("deadline_max=", deadline_max.count(), "us is not between ", text_of(deadline_shortest), " and 30 days"));
  if (deadline != microseconds{0} && (deadline < deadline_shortest || deadline > deadline_max)) {
    return wrong(concat("deadline=", deadline.count(), "us is neither 0 nor between ", text_of(deadline_shortest),
                        " and deadline_max=", text_of(deadline_max)));
  }
  if (staging_bytes_max < staging_min)
    return wrong(concat("staging=", staging_bytes_max, " is less than ", text_of(staging_min, sizes)));
  return {};
}

}  // namespace unisono

// Converts MoshpitSgdOptions and MoshpitSgdReport to text, and parses options.
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/concat.h"
#include "base/option_text.h"
#include "unisono/moshpit_sgd.h"

namespace unisono {
namespace {

using option_text::set_choice;
using option_text::set_number;
using option_text::shortest;
using option_text::wrong;

constexpr std::array average_names{"parameters", "pseudo_gradients"};
constexpr std::array outer_names{"sgd", "nesterov"};
constexpr std::array switch_names{"off", "on"};

const std::vector<option_text::Option<MoshpitSgdOptions>>& all_options() {
  static const std::vector<option_text::Option<MoshpitSgdOptions>> options{
      {"local_steps", [](auto& o, auto k, auto v) { return set_number(o.local_steps, k, v); }},
      {"samples", [](auto& o, auto k, auto v) { return set_number(o.target_samples, k, v); }},
      {"average", [](auto& o, auto k, auto v) { return set_choice(o.average, k, v, average_names); }},
      {"outer", [](auto& o, auto k, auto v) { return set_choice(o.outer, k, v, outer_names); }},
      {"rate", [](auto& o, auto k, auto v) { return set_number(o.outer_rate, k, v); }},
      {"momentum", [](auto& o, auto k, auto v) { return set_number(o.outer_momentum, k, v); }},
      {"overlap", [](auto& o, auto k, auto v) { return set_choice(o.overlap, k, v, switch_names); }},
  };
  return options;
}

}  // namespace

Result<MoshpitSgdOptions> MoshpitSgdOptions::parse(std::string_view text) {
  MoshpitSgdOptions options;
  if (!text.empty()) {
    if (auto status = option_text::set_options(options, text, all_options(), "local_steps=8"); !status.ok()) return status;
  }
  if (auto status = options.check(); !status.ok()) return status;
  return options;
}

std::string MoshpitSgdOptions::to_string() const {
  const MoshpitSgdOptions usual;
  option_text::Writer options;
  options.add_number(local_steps, usual.local_steps, "local_steps");
  options.add_number(target_samples, usual.target_samples, "samples");
  options.add(average != usual.average, "average", average_names[static_cast<size_t>(average)]);
  options.add(outer != usual.outer, "outer", outer_names[static_cast<size_t>(outer)]);
  options.add_number(outer_rate, usual.outer_rate, "rate");
  options.add_number(outer_momentum, usual.outer_momentum, "momentum");
  options.add(overlap != usual.overlap, "overlap", "off");
  return options.text().empty() ? "" : options.text().substr(1);
}

Status MoshpitSgdOptions::check() const {
  if (local_steps == 0 && target_samples == 0)
    return wrong("local_steps=0: at least one local step precedes an averaging step");
  if (average > Average::pseudo_gradients || outer > Outer::nesterov) return wrong("average or outer has an unknown value");
  if (std::isnan(outer_rate) || std::isinf(outer_rate) || outer_rate == 0 || (outer_rate < 0 && outer_rate != -1))
    return wrong("rate=" + shortest(outer_rate) + " is not a positive number");
  if (!(outer_momentum < 1) || (outer_momentum < 0 && outer_momentum != -1))
    return wrong("momentum=" + shortest(outer_momentum) + " is not from 0 to below 1");
  if (outer == Outer::sgd && outer_momentum > 0) return wrong("momentum needs outer=nesterov");
  if (average == Average::parameters && (outer_rate != -1 || outer_momentum != -1))
    return wrong("rate and momentum need average=pseudo_gradients");
  return {};
}

std::string MoshpitSgdReport::to_string() const {
  using Count = unsigned long long;
  char line[400];
  std::snprintf(line, sizeof line,
                "%llu steps of %llu samples; %llu averaging steps, %llu exact, %llu alone, with %u peers; spread %.3g; useful "
                "%.1f %% of %.1f s, %llu steps during averaging steps",
                static_cast<Count>(steps), static_cast<Count>(samples), static_cast<Count>(averaging_steps),
                static_cast<Count>(exact), static_cast<Count>(alone), peers, spread, 100 * useful_share(), total_s,
                static_cast<Count>(overlapped_steps));
  std::string text = line;
  if (without_weight > 0) text += concat("; ", without_weight, " averaging steps without weight");
  if (not_finite > 0) text += concat("; values not finite in ", not_finite);
  return text;
}

}  // namespace unisono

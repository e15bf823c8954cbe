// Converts the options of a sharded step to text and back, and its reports to text.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "base/option_text.h"
#include "unisono/sharded_step.h"

namespace unisono {
namespace {

using option_text::set_choice;
using option_text::set_number;
using option_text::shortest;
using option_text::wrong;

constexpr std::array delivery_names{"reliable", "lossy"};
constexpr std::array switch_names{"off", "on"};

Status set_codec(StepCodec& codec, std::string_view key, std::string_view value) {
  const auto parsed = Codec::parse(value);
  if (!parsed.ok()) return wrong(std::string(key) + ": " + parsed.status().message());
  if (parsed->reduce != parsed->gather || parsed->own_exact || parsed->poison)
    return wrong(std::string(key) + "=" + std::string(value) + " names more than one step's codec");
  codec = parsed->reduce;
  return {};
}

const std::vector<option_text::Option<ShardedOptions>>& own_options() {
  static const std::vector<option_text::Option<ShardedOptions>> options{
      {"delivery", [](auto& o, auto k, auto v) { return set_choice(o.delivery, k, v, delivery_names); }},
      {"gradients", [](auto& o, auto k, auto v) { return set_codec(o.gradients, k, v); }},
      {"values", [](auto& o, auto k, auto v) { return set_codec(o.values, k, v); }},
      {"clip", [](auto& o, auto k, auto v) { return set_number(o.clip_norm, k, v); }},
      {"finite", [](auto& o, auto k, auto v) { return set_choice(o.check_finite, k, v, switch_names); }},
      {"stale_max", [](auto& o, auto k, auto v) { return set_number(o.stale_max, k, v); }},
      {"resync", [](auto& o, auto k, auto v) { return set_number(o.resync_every, k, v); }},
      {"backup", [](auto& o, auto k, auto v) { return set_number(o.backup_every, k, v); }},
      {"drift", [](auto& o, auto k, auto v) { return set_number(o.drift_every, k, v); }},
  };
  return options;
}

bool is_own(std::string_view option) {
  const auto key = option.substr(0, option.find('='));
  for (const auto& own : own_options()) {
    if (key == own.key) return true;
  }
  return false;
}

void add(std::string& text, const char* format, auto... values) {
  char line[200];
  std::snprintf(line, sizeof line, format, values...);
  text += line;
}

using Count = unsigned long long;

}  // namespace

Result<ShardedOptions> ShardedOptions::parse(std::string_view text) {
  std::string own, delivery;
  for (size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find(',', begin), text.size());
    const auto option = text.substr(begin, end - begin);
    auto& part = is_own(option) ? own : delivery;
    part += (part.empty() ? "" : ",") + std::string(option);
    begin = end + 1;
  }
  ShardedOptions options;
  if (!own.empty()) {
    if (auto status = option_text::set_options(options, own, own_options(), "clip=1"); !status.ok()) return status;
  }
  auto lossy = DeliveryOptions::parse(delivery);
  if (!lossy.ok()) return lossy.status();
  options.lossy = *lossy;
  if (auto status = options.check(); !status.ok()) return status;
  return options;
}

std::string ShardedOptions::to_string() const {
  const ShardedOptions usual;
  option_text::Writer options;
  if (delivery == Delivery::reliable) options.add(true, "delivery", delivery_names[0]);
  options.add(gradients.kind != StepCodec::Kind::plain, "gradients", Codec::of(gradients).to_string());
  options.add(values.kind != StepCodec::Kind::plain, "values", Codec::of(values).to_string());
  options.add_number(clip_norm, usual.clip_norm, "clip");
  options.add(check_finite, "finite", "on");
  options.add_number(stale_max, usual.stale_max, "stale_max");
  options.add_number(resync_every, usual.resync_every, "resync");
  options.add_number(backup_every, usual.backup_every, "backup");
  options.add_number(drift_every, usual.drift_every, "drift");
  auto text = options.text().empty() ? "" : options.text().substr(1);
  const auto more = lossy.to_string();
  return text + (text.empty() || more.empty() ? "" : ",") + more;
}

Status ShardedOptions::check() const {
  if (delivery != Delivery::reliable && delivery != Delivery::lossy)
    return wrong("delivery of a sharded step must be reliable or lossy, equal on all ranks");
  if (!(clip_norm >= 0) || std::isinf(clip_norm)) return wrong("clip=" + shortest(clip_norm) + " is not a valid norm");
  if (stale_max == 1) return wrong("stale_max=1 would fetch every missing range: use loss_budget=0 for that");
  if (timeout.count() < 0) return wrong("timeout is negative");
  return lossy.check();
}

std::string ShardedReport::to_string() const {
  std::string text;
  add(text, "step %u: %llu of %llu ranges stale, %u steps at most", step, static_cast<Count>(stale_ranges),
      static_cast<Count>(ranges), age_max);
  if (held_ranges > 0) add(text, ", %llu held", static_cast<Count>(held_ranges));
  if (fetched_ranges > 0) add(text, ", %llu fetched", static_cast<Count>(fetched_ranges));
  if (behind > 0) add(text, ", %u steps behind", behind);
  if (gradient_norm >= 0) add(text, "; norm %.4g, times %.3g", gradient_norm, clipped);
  if (scalars_missing > 0) add(text, ", %u ranks' norms old", scalars_missing);
  if (!applied) text += "; not finite, not applied";
  add(text, "; %lld us: reduce %lld, update %lld, gather %lld; sent %llu bytes", static_cast<long long>(total_us),
      static_cast<long long>(reduce_us), static_cast<long long>(update_us), static_cast<long long>(gather_us),
      static_cast<Count>(sent_bytes));
  if (drift) {
    add(text, "; drift %.4g (expected %.4g), pairs %.4g (%.4g; 2p/(1+p) form %.4g), loss %.4g, rho %.3g", drift->owner,
        drift->owner_expected, drift->pair, drift->pair_expected, drift->paper_form, drift->loss, drift->rho);
  }
  for (const auto rank : lost) add(text, "; rank %u lost", rank);
  for (const auto* half : {gradients.get(), values.get()}) {
    if (half != nullptr && !half->outcome.ok())
      text += std::string("; ") + (half == gradients.get() ? "gradients " : "values ") + half->outcome.to_string();
  }
  for (const auto& warning : warnings) text += "; " + warning;
  return text;
}

}  // namespace unisono

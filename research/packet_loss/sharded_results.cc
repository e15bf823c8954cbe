#include "research/packet_loss/sharded_results.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace language_model {

namespace {

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

nlohmann::json to_json(const ShardedSums::Half& half) {
  return {{"expected", half.expected},   {"missing", half.missing}, {"repaired", half.repaired},
          {"late_datagrams", half.late}, {"streams_cut", half.cut}, {"lost_share", lost_share(half)}};
}

nlohmann::json to_json(const ShardedSums& sums) {
  return {{"steps", sums.steps},
          {"learning_steps", sums.learning},
          {"gradients", to_json(sums.gradients)},
          {"values", to_json(sums.values)},
          {"full_ranges", sums.full_ranges},
          {"short_ranges", sums.short_ranges},
          {"empty_ranges", sums.empty_ranges},
          {"ranges", sums.ranges},
          {"stale_ranges", sums.stale},
          {"fetched_ranges", sums.fetched},
          {"held_ranges", sums.held},
          {"age_max", sums.age_max},
          {"steps_behind", sums.behind},
          {"scalars_missing", sums.scalars_missing},
          {"skipped_steps", sums.skipped},
          {"reduce_s", 1e-6 * static_cast<double>(sums.reduce_us)},
          {"update_s", 1e-6 * static_cast<double>(sums.update_us)},
          {"gather_s", 1e-6 * static_cast<double>(sums.gather_us)}};
}

nlohmann::json to_json(const DriftPoint& point) {
  const auto& drift = point.drift;
  return {{"step", point.step},
          {"owner", number(drift.owner)},
          {"owner_expected", number(drift.owner_expected)},
          {"pair", number(drift.pair)},
          {"pair_expected", number(drift.pair_expected)},
          {"paper_form", number(drift.paper_form)},
          {"gap", number(drift.gap)},
          {"second_moment", number(drift.second_moment)},
          {"rho", number(drift.rho)},
          {"loss", number(drift.loss)},
          {"recovery", number(drift.recovery)}};
}

double percent(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

std::string describe(const ShardedResults& r) {
  const auto all = sum_of(r.ranks);
  auto out =
      fmt::format("each rank owns a shard of the parameters, {}\n", r.options.empty() ? "with default options" : r.options);
  if (!r.ablation.empty()) out += fmt::format("  WRONG on purpose: {}\n", r.ablation);
  out += fmt::format(
      "  did not come the first time: {:.2f} % of gradients, {:.2f} % of values; streams cut by deadlines {}, late datagrams "
      "{}\n",
      100 * lost_share(all.gradients), 100 * lost_share(all.values), all.gradients.cut + all.values.cut,
      all.gradients.late + all.values.late);
  out += fmt::format(
      "  values stale after a step: {:.2f} %, {} steps at most; fetched {}, held {}; deadlines were learnt in {} steps\n",
      percent(all.stale, all.ranges), all.age_max, all.fetched, all.held, r.ranks.empty() ? 0 : all.learning / r.ranks.size());
  if (all.behind + all.scalars_missing + all.skipped > 0)
    out += fmt::format("  steps without some rank {}, norms that were old {}, steps skipped {}\n", all.behind,
                       all.scalars_missing, all.skipped);
  if (!r.notes.validation.empty()) {
    const auto& last = r.notes.validation.back();
    out += fmt::format("  held-out text: {:.4f} nats per byte with the owners' values, {:.4f} with replicas\n", last.owners,
                       last.replica);
  }
  if (!r.notes.drift.empty()) {
    const auto& [step, drift] = r.notes.drift.back();
    out += fmt::format(
        "  drift after step {}: replica and owner {:.3g} (expected {:.3g}), two replicas {:.3g} (expected {:.3g}; 2p/(1+p) "
        "form, unconfirmed, {:.3g})\n",
        step, drift.owner, drift.owner_expected, drift.pair, drift.pair_expected, drift.paper_form);
  }
  for (const auto& warning : r.notes.warnings) out += fmt::format("  warning: {}\n", warning);
  return out + "\n";
}

nlohmann::json to_json(const ShardedResults& r) {
  auto drift = nlohmann::json::array(), validation = nlohmann::json::array(), ranks = nlohmann::json::array();
  for (const auto& point : r.notes.drift) drift.push_back(to_json(point));
  for (const auto& point : r.notes.validation)
    validation.push_back({{"step", point.step}, {"owners", number(point.owners)}, {"replica", number(point.replica)}});
  for (const auto& sums : r.ranks) ranks.push_back(to_json(sums));
  return {{"options", r.options},     {"ablation", r.ablation}, {"all", to_json(sum_of(r.ranks))}, {"ranks", ranks},
          {"validation", validation}, {"drift", drift},         {"warnings", r.notes.warnings}};
}

}  // namespace language_model

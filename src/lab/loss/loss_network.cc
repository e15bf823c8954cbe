#include "lab/loss/loss_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/common/text.h"

namespace unisono::lab {

using cli::format_duration;

namespace {

using sim::PeerFaultKind;
using sim::UdpOutcome;
using sim::UdpRunSettings;

// Queues may drop this fraction of the datagrams, because check E3 of docs/design/methods/packet_loss.md requires that 99.5 %
// are delivered.
constexpr double incast_allowed = .005;
// Check E3 applies only after 50 operations, and only if queues have at least 256 KiB.
constexpr uint64_t rates_learnt_after = 50, queue_least = 256u << 10;
// If senders have different losses, a bias is expected. The measured bias may differ from it by this fraction, because losses
// also vary within a stream.
constexpr double unequal_tolerance = .25;

// Checks that something happened exactly `expected` times.
LossCheck count_of(std::string group, std::string what, uint64_t measured, uint64_t expected, std::string note = {}) {
  return {.group = std::move(group),
          .what = std::move(what),
          .measured = static_cast<double>(measured),
          .interval = 0,
          .formula = static_cast<double>(expected),
          .allowed = 0,
          .verdict = measured == expected ? CheckVerdict::ok : CheckVerdict::off,
          .note = std::move(note)};
}

LossCheck plain(std::string group, std::string what, double measured, std::string note = {}) {
  return {.group = std::move(group),
          .what = std::move(what),
          .measured = measured,
          .interval = unknown,
          .formula = unknown,
          .allowed = unknown,
          .verdict = CheckVerdict::none,
          .note = std::move(note)};
}

// Checks that a count is 0. It can be above 0 if a link is silent for a long time, and a burst of losses can cause this. So if
// there are bursts, a count above 0 gets no verdict.
LossCheck count_without_fault(std::string group, std::string what, uint64_t measured, const UdpRunSettings& settings,
                              const std::string& note = {}) {
  auto check = count_of(std::move(group), std::move(what), measured, 0, note);
  const bool has_bursts =
      settings.loss.kind == sim::LossModel::Kind::gilbert_elliott || settings.loss.kind == sim::LossModel::Kind::chain ||
      settings.loss.granularity == sim::LossModel::Granularity::shard || sim::mean_loss(settings.loss, settings.peers) > .5;
  if (check.verdict == CheckVerdict::off && has_bursts) {
    check.verdict = CheckVerdict::none;
    check.note = "losses that come together can silence a link" + (note.empty() ? "" : "; " + note);
  }
  return check;
}

LossCheck judged(LossCheck check) {
  if (!std::isfinite(check.measured) || !std::isfinite(check.formula)) return check;
  if (!std::isfinite(check.allowed)) check.verdict = CheckVerdict::unsure;
  else check.verdict = std::abs(check.measured - check.formula) <= check.allowed ? CheckVerdict::ok : CheckVerdict::off;
  return check;
}

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? unknown : static_cast<double>(part) / static_cast<double>(whole);
}
double milliseconds(int64_t us) { return static_cast<double>(us) / 1000; }

void add_operations(const NetworkResult& result, std::vector<LossCheck>& checks) {
  const auto& o = result.outcome;
  uint64_t calls = 0;
  std::string errors;
  for (const auto& [code, count] : o.ended) {
    calls += count;
    if (code != Code::ok) errors += fmt::format("{}{} {}", errors.empty() ? "" : ", ", count, name(code));
  }
  if (o.behind > 0) errors += fmt::format("; {} had been away", o.behind);
  const auto ok = o.ended.contains(Code::ok) ? o.ended.at(Code::ok) : 0;
  checks.push_back(plain("operations", "calls that ended well", share(ok, calls), errors));
  checks.push_back(
      count_without_fault("operations", "failed while no peer was away", o.failed_without_fault, *result.plan.network));
  checks.push_back(count_of("operations", "runs that did not end", o.is_stuck ? 1 : 0, 0));
  checks.push_back(count_of("operations", "results unlike another rank's", o.differing, 0, "to the bit"));
  checks.push_back(count_of("operations", "elements beyond all contributions", o.out_of_range, 0));
  checks.push_back(plain("operations", "duration p50, ms", o.durations_us.empty() ? unknown : milliseconds(o.duration_us(.5))));
  checks.push_back(
      plain("operations", "duration p99, ms", o.durations_us.empty() ? unknown : milliseconds(o.duration_us(.99))));
  if (o.contributions.phases > 0)
    checks.push_back(count_of("operations", "contributions longer than t_hard", o.contributions.over, 0,
                              fmt::format("of {}; at most {:.2f} t_hard", o.contributions.phases, o.contributions.longest)));
  if (o.delayed > 0)
    checks.push_back(
        count_of("operations", "delayed by absence beyond 2 t_hard", o.delayed_over, 0,
                 fmt::format("of {} during which a member was away; at most {:.2f} t_hard", o.delayed, o.longest_delay)));
  if (o.results.phases > 0)
    checks.push_back(
        plain("operations", "results longer than t_hard", static_cast<double>(o.results.over),
              fmt::format("of {}; at most {:.2f} t_hard: repaired until complete", o.results.phases, o.results.longest)));
}

// Returns the standard error of the fraction that is lost. Bursts multiply the variance of the number of losses by (1 + lambda)
// / (1 - lambda).
double loss_error(const sim::LossModel& model, double loss, uint64_t datagrams) {
  double burst_factor = 1;
  if (model.kind == sim::LossModel::Kind::gilbert_elliott) {
    const double lambda = 1 - model.fall() - 1 / model.burst;
    burst_factor = (1 + lambda) / (1 - lambda);
  }
  return std::sqrt(loss * (1 - loss) * std::max(1., burst_factor) / static_cast<double>(std::max<uint64_t>(1, datagrams)));
}

void add_datagrams(const NetworkResult& result, std::vector<LossCheck>& checks) {
  const auto& o = result.outcome;
  const auto& s = *result.plan.network;
  const auto sent = o.data[0].sent + o.data[1].sent, lost = o.data[0].lost + o.data[1].lost,
             overflowed = o.data[0].overflowed + o.data[1].overflowed;
  const double law = sim::mean_loss(s.loss, s.peers);
  // Other models decide for a whole range, link or shard whether it is lost. This gives too few samples for an interval.
  const bool is_by_datagram = (s.loss.kind == sim::LossModel::Kind::none || s.loss.kind == sim::LossModel::Kind::iid ||
                               s.loss.kind == sim::LossModel::Kind::gilbert_elliott) &&
                              s.loss.granularity == sim::LossModel::Granularity::datagram;
  const double error = loss_error(s.loss, law, sent);
  checks.push_back(judged({.group = "datagrams",
                           .what = "share lost on links",
                           .measured = share(lost, sent),
                           .interval = is_by_datagram ? z_interval * error : unknown,
                           .formula = law,
                           .allowed = is_by_datagram ? z_allowed * error + 1e-12 : unknown,
                           .note = fmt::format("of {} with data", sent)}));
  if (!is_by_datagram) checks.back().verdict = CheckVerdict::none;
  auto incast = plain("datagrams", "share dropped before ports in (incast)", share(overflowed, sent));
  if (std::isfinite(incast.measured) && s.model.queue_bytes >= queue_least && s.burn_in >= rates_learnt_after) {
    incast.allowed = incast_allowed;
    incast.formula = 0;
    incast = judged(incast);
  } else {
    incast.note = s.burn_in < rates_learnt_after ? "rates may still be learnt" : "queues are short: reported only";
  }
  checks.push_back(incast);
  if (o.fates.unread > 0)
    checks.push_back(plain("datagrams", "dropped by full socket buffers", static_cast<double>(o.fates.unread)));
  if (o.fates.cut > 0)
    checks.push_back(plain("datagrams", "to and from peers that are away", static_cast<double>(o.fates.cut)));
  checks.push_back(
      plain("datagrams", "contributions missing at the close", share(o.contributions.missing, o.contributions.expected)));
  checks.push_back(plain("datagrams", "contributions repaired", share(o.contributions.repaired, o.contributions.expected)));
  checks.push_back(plain("datagrams", "results repaired", share(o.results.repaired, o.results.expected)));
}

// Returns the bias that is expected because each sender has its own loss. Source: docs/design/methods/packet_loss.md, "The
// estimator", unequal loss.
double expected_deviation(const UdpRunSettings& s, const UdpOutcome& o) {
  const auto values = sim::fixed_gradients(s.peers);
  std::vector<double> losses;
  for (const auto& sender : o.by_distance) losses.push_back(sender.share());
  double truth = 0;
  for (const double value : values) truth += value / s.peers;
  const double conditional =
      sim::estimate_mean({.estimator = s.delivery.estimator, .values = values, .losses = losses, .owner = 0, .known_loss = 0});
  const double empty = share(o.ranges_empty, o.ranges_full + o.ranges_short + o.ranges_empty);
  const double alone = s.delivery.on_empty == OnEmpty::zero ? 0 : values[0];
  return (1 - empty) * conditional + empty * alone - truth;
}

void add_sums(const NetworkResult& result, std::vector<LossCheck>& checks) {
  const auto& o = result.outcome;
  const auto& s = *result.plan.network;
  const double error = o.deviation.standard_error();
  LossCheck deviation{.group = "sums",
                      .what = "deviation of the mean",
                      .measured = o.deviation.empty() ? unknown : o.deviation.mean(),
                      .interval = sim::student(z_interval, o.deviation.blocks()) * error,
                      .formula = unknown,
                      .allowed = unknown,
                      .verdict = CheckVerdict::none,
                      .note = {}};
  const auto [least, most] = std::minmax_element(o.by_distance.begin() + 1, o.by_distance.end(),
                                                 [](const auto& a, const auto& b) { return a.share() < b.share(); });
  if (s.model.faults.empty() && s.loss.kind != sim::LossModel::Kind::links) {
    deviation.formula = expected_deviation(s, o);
    deviation.allowed =
        sim::student(z_allowed, o.deviation.blocks()) * error + unequal_tolerance * std::abs(deviation.formula) + rounding;
    deviation = judged(deviation);
    if (s.delivery.estimator != Estimator::stratified && deviation.verdict == CheckVerdict::ok)
      deviation.verdict = CheckVerdict::control;
  } else {
    deviation.note = "peers or links differ; ";
  }
  if (most->expected > 0)
    deviation.note += fmt::format("by what is missing of senders, {:.2g} to {:.2g}", least->share(), most->share());
  else deviation.note = "the group had lost members";
  checks.push_back(deviation);
  const auto ranges = o.ranges_full + o.ranges_short + o.ranges_empty;
  checks.push_back(plain("sums", "ranges: full", share(o.ranges_full, ranges)));
  checks.push_back(plain("sums", "ranges: short", share(o.ranges_short, ranges)));
  checks.push_back(plain("sums", "ranges: empty", share(o.ranges_empty, ranges)));
  checks.push_back(plain("sums", "N_eff", o.effective));
}

void add_peers(const NetworkResult& result, std::vector<LossCheck>& checks) {
  const auto& o = result.outcome;
  checks.push_back(count_without_fault("peers", "healthy ranks named by others", o.wrongly_named, *result.plan.network,
                                       o.first_wrong_error));
  for (const auto& record : o.faults) {
    if (record.fault.kind == PeerFaultKind::slow) continue;
    std::string note;
    if (!record.happened) note = "the run ended before the fault";
    else if (record.named_by == 0) note = "no rank named it";
    else
      note = fmt::format("named after {}, by all after {}", format_duration(record.first_named),
                         record.last_named == never ? "-" : format_duration(record.last_named));
    if (record.removed) note += "; the group re-formed without it";
    auto check = plain("peers", fmt::format("{}: named by", record.fault.to_string()), record.named_by, note);
    if (record.happened && record.fault.to == never) {
      check.formula = record.to_be_named_by;
      check.allowed = check.interval = 0;
      check.verdict = record.removed && record.named_by == record.to_be_named_by ? CheckVerdict::ok : CheckVerdict::off;
      if (!record.removed && result.outcome.operations >= result.plan.network->operations)
        check.verdict = CheckVerdict::unsure, check.note += "; too few operations followed";
    }
    checks.push_back(check);
  }
  for (const auto& [process, streams] : o.silent)
    checks.push_back(plain("peers", fmt::format("rank {}: silent or lost streams", process), static_cast<double>(streams)));
}

}  // namespace

std::vector<LossCheck> checks_of(const NetworkResult& result) {
  std::vector<LossCheck> checks;
  add_operations(result, checks);
  add_datagrams(result, checks);
  add_sums(result, checks);
  add_peers(result, checks);
  return checks;
}

}  // namespace unisono::lab

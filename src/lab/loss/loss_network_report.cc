#include "lab/loss/loss_network_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/common/text.h"
#include "lab/common/option_words.h"
#include "lab/loss/loss_text.h"

namespace unisono::lab {

using cli::Axis;
using cli::format_bytes;
using cli::format_duration;
using cli::Panel;
using cli::Point;
using cli::Series;

namespace {

using Json = nlohmann::ordered_json;

constexpr int what_width = 42;

std::string lossy_text(const DeliveryOptions& options) {
  const auto text = options.to_string();
  return text.empty() ? "delivery as of a call" : text;
}

std::string explanation_of(const std::string& group) {
  if (group == "operations")
    return "operations: all-reduces of all ranks; a phase may exceed its learnt deadline by a tenth, at least 2 ms";
  if (group == "datagrams") return "datagrams: of contributions and results, repairs included";
  if (group == "sums")
    return "sums: fixed, unequal contributions; deviation: mean of results - true mean, beside what unequal delivery explains";
  return "peers: which faulty ranks were named, by healthy ranks";
}

Json time_or_null(Nanos time) { return time == never ? Json() : Json(time); }

Json json_of(const sim::DatagramFates& fates) {
  return {{"sent", fates.sent}, {"delivered", fates.delivered}, {"lost", fates.lost}, {"overflowed", fates.overflowed},
          {"cut", fates.cut},   {"unread", fates.unread}};
}

Json settings_json(const NetworkResult& result) {
  const auto& s = *result.plan.network;
  return {{"kind", "network"},
          {"peers", s.peers},
          {"network", s.model.to_string()},
          {"loss", s.loss.to_string()},
          {"lossy", s.delivery.to_string()},
          {"bytes", s.bytes},
          {"operations", s.operations},
          {"burn_in", s.burn_in},
          {"datagram", result.outcome.datagram_bytes},
          {"ranges", result.outcome.ranges},
          {"seeds", result.plan.seeds}};
}

Json run_json(const sim::UdpOutcome& o) {
  Json json{{"kind", "run"},
            {"operations", o.operations},
            {"calls", Json::object()},
            {"ends", Json::object()},
            {"silent", Json::object()},
            {"datagrams", json_of(o.fates)},
            {"contributions", json_of(o.data[0])},
            {"results", json_of(o.data[1])},
            {"members", o.members},
            {"virtual_ns", o.virtual_time},
            {"linked_ns", o.linked},
            {"events", o.events},
            {"trace_hash", fmt::format("{:016x}", o.trace_hash)}};
  for (const auto& [code, count] : o.ended) json["calls"][name(code)] = count;
  constexpr const char* ends[] = {"none", "complete", "tail", "soft", "hard", "silent", "lost"};
  for (size_t i = 1; i < o.ends.size(); ++i) json["ends"][ends[i]] = o.ends[i];
  for (const auto& [process, streams] : o.silent) json["silent"][std::to_string(process)] = streams;
  return json;
}

Series line(std::string name, const char* colour, bool dashed, std::vector<Point> points) {
  return {
      .name = std::move(name), .colour = colour, .line_width = dashed ? 1.5 : 2, .dashed = dashed, .points = std::move(points)};
}

}  // namespace

std::string table_of(const NetworkResult& result, std::span<const LossCheck> checks) {
  const auto& s = *result.plan.network;
  const auto& o = result.outcome;
  auto text = fmt::format("# {} ranks over UDP, {}; loss {}; {}\n", s.peers, s.model.to_string(), s.loss.to_string(),
                          lossy_text(s.delivery));
  text += fmt::format("# {} of {}, the first {} not measured; {} of {} bytes in a shard; {}\n",
                      plural(s.operations, "operation"), format_bytes(s.bytes), s.burn_in, plural(o.ranges, "datagram"),
                      o.datagram_bytes, seeds_text(result.plan.seeds));
  const std::string* group = nullptr;
  for (const auto& check : checks) {
    if (group == nullptr || *group != check.group) text += head_of_checks(explanation_of(check.group), what_width, "expected");
    group = &check.group;
    text += line_of(check, what_width);
  }
  text += fmt::format("\n# {} as expected, {} OFF, {} unsure; {} of virtual time, trace {:016x}\n",
                      count_of(checks, CheckVerdict::ok), count_of(checks, CheckVerdict::off),
                      count_of(checks, CheckVerdict::unsure), format_duration(o.virtual_time), o.trace_hash);
  return text;
}

std::string json_of(const NetworkResult& result, std::span<const LossCheck> checks) {
  const auto& o = result.outcome;
  auto text = settings_json(result).dump() + "\n";
  for (const auto& check : checks) text += value_of(check).dump() + "\n";
  for (const auto& record : o.faults) {
    text += Json{{"kind", "fault"},
                 {"fault", record.fault.to_string()},
                 {"happened", record.happened},
                 {"removed", record.removed},
                 {"first_named_ns", time_or_null(record.first_named)},
                 {"last_named_ns", time_or_null(record.last_named)},
                 {"named_by", record.named_by},
                 {"to_be_named_by", record.to_be_named_by}}
                .dump() +
            "\n";
  }
  Json curve{{"kind", "curve"}, {"points", Json::array()}};
  for (const auto& point : o.curve)
    curve["points"].push_back({point.number, point.median_us, point.longest_us, point.overflowed, point.missing});
  text += curve.dump() + "\n" + run_json(o).dump() + "\n";
  return text + verdict_of(checks).dump() + "\n";
}

std::vector<Panel> panels_of(const NetworkResult& result) {
  const auto& s = *result.plan.network;
  std::vector<Point> median, longest, missing, overflowed;
  for (const auto& point : result.outcome.curve) {
    const auto x = static_cast<double>(point.number);
    median.push_back({x, static_cast<double>(point.median_us) / 1000});
    longest.push_back({x, static_cast<double>(point.longest_us) / 1000});
    overflowed.push_back({x, point.overflowed * 100});
    if (point.number >= s.burn_in) missing.push_back({x, point.missing * 100});
  }
  Panel times{.title = fmt::format("Lossy all-reduce, {} ranks, {}", s.peers, s.loss.to_string()),
              .x_label = "operation",
              .y_label = "ms",
              .series = {},
              .y_axis = Axis::decades};
  times.series = {line("longest of the ranks", "#ff7f0e", false, longest),
                  line("median of the ranks", "#1f77b4", false, median)};
  Panel shares{.title = s.model.to_string(), .x_label = "operation", .y_label = "%", .series = {}, .y_from_zero = true};
  shares.series = {line("contributions missing at the close", "#d62728", false, missing),
                   line("dropped before ports in (incast)", "#2ca02c", true, overflowed)};
  return {times, shares};
}

}  // namespace unisono::lab

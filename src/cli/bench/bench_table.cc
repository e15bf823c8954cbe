#include "cli/bench/bench_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/common/text.h"
#include "cli/common/version.h"

namespace unisono::cli {
namespace {

constexpr const char* across_names[] = {"of rank 0", "mean over ranks", "fastest rank", "slowest rank"};
constexpr const char* orders[] = {"auto", "strict", "any"};

std::string interface_summary(const HostFacts& host) {
  std::string text;
  for (const auto& [name, mtu] : host.interfaces) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, mtu);
  return text;
}

// Formats a number with two decimals, as nccl-tests do. A value below 1 gets four decimals, so that it keeps enough digits.
std::string rate(double value) { return value < 1 ? fmt::format("{:.4f}", value) : fmt::format("{:.2f}", value); }

std::string half_row(const BenchFacts& facts, const std::optional<Measurement>& measurement) {
  if (!measurement) return fmt::format(" {:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-", "-", "-");
  const auto& timing = measurement->timing;
  const auto wrong = measurement->checked ? fmt::format("{}", measurement->wrong) : "N/A";
  return fmt::format(" {:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", four_digits(timing.mean_us), four_digits(timing.p50_us),
                     four_digits(timing.p99_us), rate(algorithm_bandwidth(*measurement)),
                     rate(bus_bandwidth(facts, *measurement)), wrong);
}

const char* operation_name(const BenchFacts& facts) {
  return facts_of(facts.data.collective).reduces ? name(facts.data.op) : "none";
}

std::string counted(const std::vector<std::pair<std::string, size_t>>& counts, const char* between) {
  std::string text;
  for (const auto& [what, count] : counts) text += fmt::format("{}{} x{}", text.empty() ? "" : between, what, count);
  return text;
}

void count_one(std::vector<std::pair<std::string, size_t>>& counts, const std::string& what) {
  const auto known = std::find_if(counts.begin(), counts.end(), [&](const auto& entry) { return entry.first == what; });
  if (known == counts.end()) counts.emplace_back(what, 1);
  else ++known->second;
}

// Formats how many bytes were sent for a row, and how many ranks contributed. If the row was measured both out of place and in
// place, the larger number of bytes and the smaller number of contributors are shown.
std::string cost_of(const Row& row) {
  uint64_t wire = 0;
  uint32_t contributors = UINT32_MAX;
  for (const auto* half : {&row.out_of_place, &row.in_place}) {
    if (!*half) continue;
    wire = std::max(wire, (*half)->wire_bytes);
    contributors = std::min(contributors, (*half)->contributors);
  }
  return fmt::format(" {:>11} {:>7}", wire, contributors);
}

// Formats the columns about the codec. If the row was measured both out of place and in place, the columns show the measurement
// in place, because it was made last.
std::string codec_of(const BenchFacts& facts, const Row& row) {
  if (facts.data.codec.is_plain()) return {};
  const auto& measurement = row.in_place ? *row.in_place : *row.out_of_place;
  const auto ratio = measurement.timing.p50_us > 0 ? measurement.exact_us / measurement.timing.p50_us : 0;
  const auto snr = !measurement.checked             ? std::string("N/A")
                   : std::isinf(measurement.snr_db) ? std::string("exact")
                                                    : fmt::format("{:.1f}", measurement.snr_db);
  const auto& report = measurement.report;
  return fmt::format(" {:>7.4g} {:>6} {:>7.2f}  {}", report.bits_per_element(), snr, ratio,
                     report.codec.is_plain() ? fmt::format("left out: {}", report.codec_note)
                                             : fmt::format("{} {}", report.codec.to_string(), report.schedule));
}

std::string delivery_text(const CallOptions& call) {
  const auto options = call.lossy.to_string();
  return std::string(call.delivery == Delivery::lossy ? "lossy" : "automatic") + (options.empty() ? "" : ":" + options);
}

// Formats the columns about missing contributions and delivery. If the row was measured both out of place and in place, the
// columns show the measurement in place, because it was made last.
std::string delivery_of(const BenchFacts& facts, const Row& row) {
  if (facts.call.delivery == Delivery::reliable) return {};
  const auto& measurement = row.in_place ? *row.in_place : *row.out_of_place;
  const auto* delivery = measurement.report.delivery.get();
  if (delivery == nullptr) return fmt::format(" {:>8}  none", "-");  // the group has one rank
  return fmt::format(" {:>8.3f}  {}{}", 100 * measurement.missing, delivery->used == Delivery::lossy ? "lossy" : "reliable",
                     delivery->note.empty() ? "" : ": " + delivery->note);
}

}  // namespace

std::string four_digits(double value) {
  if (value < 100) return fmt::format("{:.2f}", value);
  return value < 10'000 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string host_summary(const std::vector<Member>& members) {
  std::vector<std::pair<std::string, size_t>> counts;
  for (const auto& member : members) count_one(counts, member.host);
  return counted(counts, ", ");
}

std::string link_summary(const std::vector<Member>& members) {
  std::vector<std::pair<std::string, size_t>> inside;
  std::vector<std::pair<std::string, size_t>> between;
  for (const auto& member : members) {
    if (member.link == "self") continue;
    count_one(member.host == members.front().host ? inside : between, member.link.substr(0, member.link.find(' ')));
  }
  std::string text = inside.empty() ? "" : "inside hosts " + counted(inside, ", ");
  if (!between.empty()) text += (text.empty() ? "between hosts " : "; between hosts ") + counted(between, ", ");
  return text.empty() ? "none" : text;
}

double algorithm_bandwidth(const Measurement& measurement) {
  if (measurement.timing.mean_us <= 0) return 0;
  return static_cast<double>(measurement.extent.bytes) / measurement.timing.mean_us / 1000;
}

double bus_bandwidth(const BenchFacts& facts, const Measurement& measurement) {
  return algorithm_bandwidth(measurement) * bus_factor(facts.data.collective, facts.data.world_size);
}

std::string table_surroundings(const BenchFacts& facts) {
  auto text = fmt::format("# host {}: {}, {} cores, kernel {}\n", facts.host.host, facts.host.processor, facts.host.cores,
                          facts.host.kernel);
  text += fmt::format("# tcp congestion control {}; mtu: {}\n", facts.host.congestion_control, interface_summary(facts.host));
  text += fmt::format("# ranks: {}; links of rank 0: {}\n", host_summary(facts.members), link_summary(facts.members));
  if (!facts.impairment.empty()) text += fmt::format("# on request: {}\n", facts.impairment);
  return text + fmt::format("# found when the group formed: {}\n", facts.speeds.to_string());
}

std::string table_head(const BenchFacts& facts) {
  std::string text =
      fmt::format("# unisono {} ({}): {}, world size {}, order {}, schedule {}\n", version_text, commit_text(),
                  facts_of(facts.data.collective).name, facts.data.world_size, orders[static_cast<size_t>(facts.call.order)],
                  schedule_words[static_cast<size_t>(facts.call.schedule)]);
  text += table_surroundings(facts);
  if (!facts.data.codec.is_plain())
    text += fmt::format("# codec {}: elements are normally distributed; #wrong: further off than the codec explains\n",
                        facts.data.codec.to_string());
  if (facts.call.delivery != Delivery::reliable)
    text += fmt::format("# delivery {}; missing: contributions that are not in the sums of the timed calls\n",
                        delivery_text(facts.call));
  text += fmt::format("# time: {}, mean over iterations{}; GB = 1e9 bytes; #wrong: elements of all ranks\n",
                      across_names[static_cast<size_t>(facts.across)], facts.barrier ? ", a barrier before each" : "");
  return text;
}

std::string row_head(const BenchFacts& facts) {
  std::string text =
      "# wire: bytes that a rank sent in one call, headers included, mean over ranks; contrib: ranks whose data is in the "
      "result\n#\n";
  const auto half = fmt::format(" {:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "time", "p50", "p99", "algbw", "busbw", "#wrong");
  const auto units = fmt::format(" {:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
  const bool codec = !facts.data.codec.is_plain(), delivery = facts.call.delivery != Delivery::reliable;
  if (codec)
    text +=
        "# bits: on the wire per element sent; snr: of the result against the exact one; gain: time (p50) without codec / with "
        "it\n#\n";
  text += fmt::format("#{:46} {:^52} {:^52}\n", "", "out-of-place", "in-place");
  text += fmt::format("#{:>12} {:>13} {:>6} {:>6} {:>5}{}{} {:>11} {:>7}{}{}\n", "size", "count", "type", "redop", "root", half,
                      half, "wire", "contrib", codec ? fmt::format(" {:>7} {:>6} {:>7}  codec", "bits", "snr", "gain") : "",
                      delivery ? fmt::format(" {:>8}  delivery", "missing") : "");
  text += fmt::format("#{:>12} {:>13} {:>6} {:>6} {:>5}{}{} {:>11} {:>7}{}{}\n", "(B)", "(elements)", "", "", "", units, units,
                      "(B/rank)", "(ranks)", codec ? fmt::format(" {:>7} {:>6} {:>7}", "", "(dB)", "(ratio)") : "",
                      delivery ? fmt::format(" {:>8}", "(%)") : "");
  return text;
}

std::string table_row(const BenchFacts& facts, const Row& row) {
  const auto& any = row.out_of_place ? *row.out_of_place : *row.in_place;
  const auto root = facts_of(facts.data.collective).has_root ? fmt::format("{}", facts.data.root) : "-1";
  return fmt::format(" {:>12} {:>13} {:>6} {:>6} {:>5}{}{}{}{}{}\n", any.extent.bytes, any.extent.block_count,
                     name(facts.data.dtype), operation_name(facts), root, half_row(facts, row.out_of_place),
                     half_row(facts, row.in_place), cost_of(row), codec_of(facts, row), delivery_of(facts, row));
}

uint64_t wrong_values(const std::vector<Row>& rows) {
  uint64_t wrong = 0;
  for (const auto& row : rows) {
    for (const auto* half : {&row.out_of_place, &row.in_place}) wrong += *half ? (*half)->wrong : 0;
  }
  return wrong;
}

std::string table_foot(const BenchFacts& facts, const std::vector<Row>& rows) {
  double sum = 0;
  size_t count = 0;
  bool checked = false;
  for (const auto& row : rows) {
    for (const auto* half : {&row.out_of_place, &row.in_place}) {
      if (!*half) continue;
      sum += bus_bandwidth(facts, **half);
      checked = checked || (*half)->checked;
      ++count;
    }
  }
  const auto wrong = wrong_values(rows);
  const auto verdict = !checked ? "N/A" : wrong == 0 ? "OK" : "FAILED";
  return fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:.4g}\n", wrong, verdict,
                     count > 0 ? sum / static_cast<double>(count) : 0.0);
}

// Adds a warning if many packets came late, because then the measured times are longer than they would be on real links of this
// kind.
std::string table_links(const LinkTally& tally) {
  const auto& counts = tally.counts;
  const auto share = [&](uint64_t part) {
    return counts.packets > 0 ? 100.0 * static_cast<double>(part) / static_cast<double>(counts.packets) : 0;
  };
  std::string text =
      fmt::format("# links: {} packets, {} lost on request ({:.2f} %), {} dropped at full queues; at most {} late\n",
                  counts.packets, counts.lost, share(counts.lost), counts.overflowed, format_duration(tally.latest));
  if (share(tally.late_packets) < 1) return text;
  return text + fmt::format(
                    "# links: {:.1f} % of the packets were more than 1 ms late: this machine is too busy for such links, and "
                    "times are too long\n",
                    share(tally.late_packets));
}

std::string json_links(const LinkTally& tally) {
  nlohmann::ordered_json json{{"kind", "links"},
                              {"packets", tally.counts.packets},
                              {"lost", tally.counts.lost},
                              {"overflown", tally.counts.overflowed},
                              {"latest_us", static_cast<double>(tally.latest) / static_cast<double>(microsecond)},
                              {"late_packets", tally.late_packets}};
  return json.dump() + "\n";
}

static nlohmann::ordered_json json_of(const LinkSpeeds::Kind& kind) {
  return {{"latency_us", kind.latency_us}, {"bytes_per_us", kind.bytes_per_us}, {"measured", kind.measured}};
}

std::string json_facts(const BenchFacts& facts) {
  nlohmann::ordered_json json;
  json["kind"] = "environment";
  json["version"] = version_text;
  json["commit"] = commit_text();
  json["host"] = facts.host.host;
  json["processor"] = facts.host.processor;
  json["cores"] = facts.host.cores;
  json["kernel"] = facts.host.kernel;
  json["congestion_control"] = facts.host.congestion_control;
  for (const auto& [name, mtu] : facts.host.interfaces) json["mtu"][name] = mtu;
  json["world_size"] = facts.data.world_size;
  for (const auto& member : facts.members) json["hosts"].push_back(member.host);
  json["links"] = link_summary(facts.members);
  for (const auto& member : facts.members) json["link_of_rank"].push_back(member.link);
  json["impairment"] = facts.impairment;
  json["inside_hosts"] = json_of(facts.speeds.inside_hosts);
  json["between_hosts"] = json_of(facts.speeds.between_hosts);
  json["barrier"] = facts.barrier;
  json["across"] = across_names[static_cast<size_t>(facts.across)];
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string json_row(const BenchFacts& facts, const Measurement& measurement, bool in_place) {
  nlohmann::ordered_json json;
  json["kind"] = "row";
  json["collective"] = facts_of(facts.data.collective).name;
  json["world_size"] = facts.data.world_size;
  json["bytes"] = measurement.extent.bytes;
  json["count"] = measurement.extent.block_count;
  json["dtype"] = name(facts.data.dtype);
  json["op"] = operation_name(facts);
  json["root"] = facts_of(facts.data.collective).has_root ? static_cast<int64_t>(facts.data.root) : -1;
  json["order"] = orders[static_cast<size_t>(facts.call.order)];
  json["asked_schedule"] = schedule_words[static_cast<size_t>(facts.call.schedule)];
  json["schedule"] = measurement.report.schedule;
  json["in_place"] = in_place;
  json["iterations"] = measurement.iterations;
  json["mean_us"] = measurement.timing.mean_us;
  json["p25_us"] = measurement.timing.p25_us;
  json["p50_us"] = measurement.timing.p50_us;
  json["p75_us"] = measurement.timing.p75_us;
  json["p99_us"] = measurement.timing.p99_us;
  json["min_us"] = measurement.timing.min_us;
  json["max_us"] = measurement.timing.max_us;
  json["algbw_gbs"] = algorithm_bandwidth(measurement);
  json["busbw_gbs"] = bus_bandwidth(facts, measurement);
  json["checked"] = measurement.checked;
  json["wrong"] = measurement.wrong;
  json["wire_bytes"] = measurement.wire_bytes;
  json["contributors"] = measurement.contributors;
  if (facts.call.delivery != Delivery::reliable) {
    json["asked_delivery"] = delivery_text(facts.call);
    if (const auto* delivery = measurement.report.delivery.get(); delivery != nullptr) {
      json["delivery"] = delivery->used == Delivery::lossy ? "lossy" : "reliable";
      json["delivery_note"] = delivery->note;
      json["missing"] = measurement.missing;
    }
  }
  if (!facts.data.codec.is_plain()) {
    const auto& report = measurement.report;
    json["asked_codec"] = facts.data.codec.to_string();
    json["codec"] = report.codec.to_string();
    json["codec_note"] = report.codec_note;
    json["bits_per_element"] = report.bits_per_element();
    json["payload_bytes"] = report.sent_payload;
    json["passes"] = report.passes;
    json["encode_us"] = report.encode_us;
    json["sum_us"] = report.sum_us;
    json["decode_us"] = report.decode_us;
    json["snr_db"] =
        std::isfinite(measurement.snr_db) ? nlohmann::ordered_json(measurement.snr_db) : nlohmann::ordered_json(nullptr);
    json["exact_p50_us"] = measurement.exact_us;
    json["gain"] = measurement.timing.p50_us > 0 ? measurement.exact_us / measurement.timing.p50_us : 0;
    json["saturated"] = report.saturated;
    json["nonfinite_groups"] = report.nonfinite_groups;
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace unisono::cli

#include "cli/observe/top_frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common/text.h"
#include "cli/observe/recent_events.h"

namespace unisono::cli {
namespace {

constexpr size_t events_shown = 3;  // The frame shows so many events of a group, the last ones.

Nanos percentile(std::vector<Nanos>& times, double part) {
  if (times.empty()) return 0;
  const auto at = std::min(times.size() - 1, static_cast<size_t>(part * static_cast<double>(times.size())));
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(at), times.end());
  return times[at];
}

// The counters of a link contain only the bytes of operations that have ended. So the bytes of running operations are added
// here.
Reading reading_of(const ScanEntry& scan_entry) {
  const auto& record = scan_entry.record;
  Reading reading{.seen = scan_entry.seen, .ended = record.ended};
  for (const auto& link : record.links) {
    reading.sent_bytes += link.sent_bytes;
    reading.received_bytes += link.received_bytes;
  }
  for (const auto& running : record.running) {
    reading.sent_bytes += running.sent_bytes;
    reading.received_bytes += running.received_bytes;
  }
  return reading;
}

void add_rates(TopRow& row, const Reading& before, const Reading& now) {
  if (now.seen <= before.seen) return;
  const auto seconds = static_cast<double>(now.seen - before.seen) / static_cast<double>(second);
  const auto rate = [&](uint64_t then, uint64_t later) {
    return later > then ? static_cast<double>(later - then) / seconds : 0.0;
  };
  row.has_rates = true;
  row.operations = rate(before.ended, now.ended);
  row.sent_bytes = rate(before.sent_bytes, now.sent_bytes);
  row.received_bytes = rate(before.received_bytes, now.received_bytes);
}

TopRow row_of(const GroupDiagnosis& diagnosis, const ScanEntry& scan_entry, const Readings& before, Readings& now) {
  const auto& record = scan_entry.record;
  TopRow row{.rank = record.rank,
             .host = record.host,
             .pid = record.pid,
             .state = activity_of(scan_entry),
             .since = since(diagnosis, scan_entry),
             .ended = record.ended};
  const auto* running = current(scan_entry);
  if (running != nullptr && scan_entry.life != Life::left) row.pending = running->pending;
  std::vector<Nanos> times;
  for (const auto& operation : record.operations) times.push_back(operation.ended - operation.started);
  row.p50 = percentile(times, 0.5);
  row.p99 = percentile(times, 0.99);
  for (const auto& collective : record.collectives) row.failed += collective.failed;
  row.is_late = std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(), [&](const GroupDiagnosis::Finding& finding) {
    return finding.cause != Cause::failed &&
           std::find(finding.ranks.begin(), finding.ranks.end(), record.rank) != finding.ranks.end();
  });
  const auto key = fmt::format("{:x}/{}/{:x}/{}", record.run, record.epoch, record.group, record.rank);
  const auto reading = reading_of(scan_entry);
  if (const auto at = before.find(key); at != before.end()) add_rates(row, at->second, reading);
  now[key] = reading;
  return row;
}

// Returns text such as "814", "12.3k", "4.1M".
std::string short_number(double value) {
  constexpr const char* units[] = {"", "k", "M", "G", "T"};
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1000;
  return value < 10 && (unit > 0 || value > 0) ? fmt::format("{:.1f}{}", value, units[unit])
                                               : fmt::format("{:.0f}{}", value, units[unit]);
}

std::string short_time(Nanos time) {
  if (time < 10 * microsecond) return fmt::format("{:.2f} us", static_cast<double>(time) / microsecond);
  if (time < 10 * millisecond) return fmt::format("{} us", time / microsecond);
  return format_duration(time);
}

std::string line_of(const TopRow& row) {
  const auto rates = row.has_rates ? fmt::format("{:>7} {:>10} {:>10}", short_number(row.operations),
                                                 format_bytes(static_cast<uint64_t>(row.sent_bytes)),
                                                 format_bytes(static_cast<uint64_t>(row.received_bytes)))
                                   : fmt::format("{:>7} {:>10} {:>10}", "-", "-", "-");
  std::string pending;
  for (const auto rank : row.pending) pending += (pending.empty() ? "" : ",") + fmt::format("{}", rank);
  return fmt::format("{}{:>4} {:>12.12} {:>7} {:>9} {} {:>9} {:>9} {:>6} {:>8}  {}", row.is_late ? "!" : " ", row.rank,
                     row.host, row.pid, format_duration(row.since), rates, short_time(row.p50), short_time(row.p99), row.failed,
                     pending.empty() ? "-" : pending, row.state);
}

}  // namespace

TopFrame frame_of(const ProcessScan& scan_entries, Readings& readings) {
  TopFrame frame;
  Readings now;
  for (const auto& diagnosis : diagnose(scan_entries.all)) {
    TopGroup group{.title = title_of(diagnosis), .world = diagnosis.world};
    for (const auto* scan_entry : diagnosis.ranks) {
      if (scan_entry != nullptr) group.rows.push_back(row_of(diagnosis, *scan_entry, readings, now));
    }
    for (const auto& finding : diagnosis.findings) group.findings.push_back(finding.text);
    const auto events = recent_events(diagnosis);
    for (auto i = events.size() - std::min(events.size(), events_shown); i < events.size(); ++i)
      group.events.push_back(text_of(diagnosis, events[i]));
    frame.groups.push_back(std::move(group));
  }
  for (const auto& scan_entry : scan_entries.all) {
    if (!scan_entry.record.note.empty())
      frame.notes.push_back(fmt::format("{}: the record is in memory only: {}", scan_entry.source, scan_entry.record.note));
  }
  frame.notes.insert(frame.notes.end(), scan_entries.read_errors.begin(), scan_entries.read_errors.end());
  readings = std::move(now);
  return frame;
}

std::string text_of(const TopFrame& frame, bool colours, size_t width) {
  const auto line = [&](std::string text, const char* colour) {
    if (width > 0 && text.size() > width) text.resize(width);
    return colours && *colour != '\0' ? fmt::format("\033[{}m{}\033[0m\n", colour, text) : text + "\n";
  };
  std::string text;
  if (frame.groups.empty()) text += "No group runs here.\n";
  for (const auto& group : frame.groups) {
    text += line(group.title, "1");
    text += line(fmt::format(" {:>4} {:>12} {:>7} {:>9} {:>7} {:>10} {:>10} {:>9} {:>9} {:>6} {:>8}  {}", "rank", "host", "pid",
                             "since", "ops/s", "out/s", "in/s", "p50", "p99", "failed", "waits for", "state"),
                 "2");
    for (const auto& row : group.rows) text += line(line_of(row), row.is_late ? "31" : "");
    for (const auto& finding : group.findings) text += line("  " + finding, "33");
    for (const auto& event : group.events) text += line("  " + event, "2");
    text += "\n";
  }
  for (const auto& note : frame.notes) text += line(note, "2");
  return text;
}

std::string json_of(const TopFrame& frame, Nanos wall) {
  nlohmann::ordered_json json;
  json["time_ns"] = wall;
  json["groups"] = nlohmann::ordered_json::array();
  for (const auto& group : frame.groups) {
    nlohmann::ordered_json g{{"title", group.title},
                             {"world_size", group.world},
                             {"ranks", nlohmann::ordered_json::array()},
                             {"findings", group.findings},
                             {"events", group.events}};
    for (const auto& row : group.rows) {
      nlohmann::ordered_json r{{"rank", row.rank},      {"host", row.host},         {"pid", row.pid},     {"state", row.state},
                               {"since_ns", row.since}, {"waits_for", row.pending}, {"late", row.is_late}};
      if (row.has_rates) {
        r["operations_per_s"] = row.operations;
        r["sent_bytes_per_s"] = row.sent_bytes;
        r["received_bytes_per_s"] = row.received_bytes;
      }
      r["p50_ns"] = row.p50;
      r["p99_ns"] = row.p99;
      r["operations"] = row.ended;
      r["failed"] = row.failed;
      g["ranks"].push_back(std::move(r));
    }
    json["groups"].push_back(std::move(g));
  }
  json["notes"] = frame.notes;
  return json.dump() + "\n";
}

}  // namespace unisono::cli

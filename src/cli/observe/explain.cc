#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/result_writer.h"
#include "cli/common/text.h"
#include "cli/observe/diagnosis.h"
#include "cli/observe/recent_events.h"

namespace unisono::cli {
namespace {

const CommandLineText explain_text{
    .name = "unisono explain",
    .usage = "unisono explain [FILE...] [OPTIONS]",
    .description =
        "Combines the records of a group's ranks, and says which rank waits for which, since when, and which one is the cause.",
    .footer = R"(Examples:
  unisono explain                          the groups that run on this host
  unisono explain /var/run/unisono         records in a folder (UNISONO_RECORD_DIR), also after a crash
  unisono explain a.record b.record        files from several hosts, or from Group::dump_record
  unisono explain --json                   the same for programs, one line
  unisono explain --output why.json        the text here, and that line in a file

The diagnosis begins with causes: ranks that are gone or stopped, calls that differ, calls that a rank has not made,
operations that failed. Then a table of all ranks, and the last events that they have reported. Times are those of each
host's clock: across hosts they are as exact as the clocks agree.

Exit code: 0 if nothing is wrong; 1 if something is, if there is no record to read or if the output cannot be written;
2 for a wrong command line.)"};

struct ExplainOptions {
  RecordSources sources;
  OutputOptions results;
};

void add_explain_options(CLI::App& app, ExplainOptions& options) {
  add_record_sources(app, options.sources);
  add_output_options(app, options.results);
}

std::string last_of(const ScanEntry& scan_entry) {
  if (scan_entry.record.operations.empty()) return "-";
  const auto& last = scan_entry.record.operations.back();
  return last.name.to_string() + (last.code == Code::ok ? "" : fmt::format(" ({})", name(last.code)));
}

std::string row_of(const GroupDiagnosis& diagnosis, uint32_t rank) {
  const auto* scan_entry = diagnosis.ranks[rank];
  if (scan_entry == nullptr) return fmt::format("  {:>4}  {}: no record\n", rank, rank_name(diagnosis, rank));
  const auto& record = scan_entry->record;
  const auto* running = current(*scan_entry);
  std::string pending;
  if (running != nullptr) {
    for (const auto other : running->pending) pending += (pending.empty() ? "" : ",") + fmt::format("{}", other);
    if (running->pending_count > running->pending.size()) pending += fmt::format(",… ({})", running->pending_count);
  }
  return fmt::format("  {:>4}  {:<14} {:>8}  {:<24} {:>9} {:>9}  {}\n", rank, record.host, record.pid, last_of(*scan_entry),
                     format_duration(since(diagnosis, *scan_entry)), pending.empty() ? "-" : pending, activity_of(*scan_entry));
}

std::string text_of(const GroupDiagnosis& diagnosis) {
  auto text = title_of(diagnosis) + "\n";
  if (diagnosis.findings.empty()) text += "Nothing is wrong: no rank is waited for, and the last operations ended well.\n";
  for (const auto& finding : diagnosis.findings) text += "* " + finding.text + "\n";
  text += fmt::format("\n  {:>4}  {:<14} {:>8}  {:<24} {:>9} {:>9}  {}\n", "rank", "host", "pid", "last ended", "since",
                      "waits for", "state");
  for (uint32_t rank = 0; rank < diagnosis.world; ++rank) text += row_of(diagnosis, rank);
  const auto events = recent_events(diagnosis);
  if (!events.empty()) text += "\n  events\n";
  for (const auto& event : events) text += "  " + text_of(diagnosis, event) + "\n";
  return text + "\n";
}

const char* name(Life life) {
  constexpr const char* names[] = {"runs", "stopped", "left", "gone", "unknown"};
  return names[static_cast<size_t>(life)];
}

nlohmann::ordered_json json_of(const GroupDiagnosis& diagnosis, uint32_t rank) {
  nlohmann::ordered_json json{{"rank", rank}};
  const auto* scan_entry = diagnosis.ranks[rank];
  json["found"] = scan_entry != nullptr;
  if (scan_entry == nullptr) return json;
  json["host"] = scan_entry->record.host;
  json["pid"] = scan_entry->record.pid;
  json["source"] = scan_entry->source;
  json["process"] = name(scan_entry->life);
  json["state"] = activity_of(*scan_entry);
  json["since_ns"] = since(diagnosis, *scan_entry);
  json["last_ended"] = last_of(*scan_entry);
  if (const auto* running = current(*scan_entry)) {
    json["operation"] = running->name.to_string();
    json["call"] = running->name.call();
    json["round"] = running->round;
    json["waits_for"] = running->pending;
    json["sent_bytes"] = running->sent_bytes;
    json["sent_total"] = running->sent_total;
    json["received_bytes"] = running->received_bytes;
    json["received_total"] = running->received_total;
  }
  return json;
}

nlohmann::ordered_json json_of(const RecentEvent& event) {
  const auto& kind = facts(event.event.kind);
  return {{"time_ns", event.at},      {"reported_by", event.reporter},
          {"kind", kind.name},        {"level", kind.level == EventLevel::warning ? "warning" : "info"},
          {"rank", event.event.rank}, {"text", event.event.text}};
}

std::string json_of(const std::vector<GroupDiagnosis>& diagnoses, const std::vector<std::string>& read_errors) {
  nlohmann::ordered_json json{{"groups", nlohmann::ordered_json::array()}, {"not_read", read_errors}};
  for (const auto& diagnosis : diagnoses) {
    nlohmann::ordered_json group{{"run", fmt::format("{:016x}", diagnosis.run)},
                                 {"group", diagnosis.group},
                                 {"epoch", diagnosis.epoch},
                                 {"world_size", diagnosis.world}};
    for (const auto& finding : diagnosis.findings)
      group["findings"].push_back({{"cause", name(finding.cause)}, {"ranks", finding.ranks}, {"text", finding.text}});
    group["events"] = nlohmann::ordered_json::array();
    for (const auto& event : recent_events(diagnosis)) group["events"].push_back(json_of(event));
    if (diagnosis.findings.empty()) group["findings"] = nlohmann::ordered_json::array();
    for (uint32_t rank = 0; rank < diagnosis.world; ++rank) group["ranks"].push_back(json_of(diagnosis, rank));
    json["groups"].push_back(std::move(group));
  }
  return json.dump() + "\n";
}

}  // namespace

CommandSyntax explain_syntax() { return syntax_of(explain_text, add_explain_options); }

int run_explain(const Arguments& arguments) {
  ExplainOptions options;
  const auto app = make_app(explain_text);
  add_explain_options(*app, options);
  if (const auto code = parse_arguments(*app, arguments)) return *code;
  const auto scan_entries = scan_records(options.sources);
  if (!scan_entries.ok()) return usage_error(explain_text.name, scan_entries.status().message());
  const auto diagnoses = diagnose(scan_entries->all);
  Sink sink(options.results);
  if (auto opened = sink.open(true); !opened.ok()) return failed(explain_text, opened);
  for (const auto& diagnosis : diagnoses) sink.table(text_of(diagnosis));
  sink.json(json_of(diagnoses, scan_entries->read_errors));
  if (auto written = sink.finish(); !written.ok()) return failed(explain_text, written);
  for (const auto& error : scan_entries->read_errors) fmt::print(stderr, "unisono explain: {}\n", error);
  for (const auto& scan_entry : scan_entries->all) {
    if (!scan_entry.record.note.empty())
      fmt::print(stderr, "unisono explain: {}: the record is in memory only: {}\n", scan_entry.source, scan_entry.record.note);
  }
  if (diagnoses.empty())
    fmt::print(stderr, "unisono explain: no record {}\n",
               options.sources.paths.empty() ? "of a process that runs here" : "there");
  const bool wrong = std::any_of(diagnoses.begin(), diagnoses.end(),
                                 [](const GroupDiagnosis& diagnosis) { return !diagnosis.findings.empty(); });
  return wrong || diagnoses.empty() ? 1 : 0;
}

}  // namespace unisono::cli

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common/command_line.h"
#include "cli/common/commands.h"
#include "cli/common/text.h"
#include "cli/observe/diagnosis.h"

namespace unisono::cli {
namespace {

const CommandLineText explain_text{.name = "unisono explain",
                                   .usage = "unisono explain [FILE...] [OPTIONS]",
                                   .description =
                                       "Puts the records of a group's ranks together, and says in words which rank waits for "
                                       "which, since when, and which is the cause.",
                                   .footer = R"(Examples:
  unisono explain                          the groups that run on this host
  unisono explain /var/run/unisono         records in a folder (UNISONO_RECORD_DIR), also after a crash
  unisono explain a.record b.record        files from several hosts, or from Group::dump_record
  unisono explain --json                   the same for programs, one line

The account begins with causes: ranks that are gone or stopped, calls that differ, calls that a rank has not made, operations
that failed. Then a table of all ranks. Times are those of each host's clock: across hosts they are as exact as the clocks agree.

Exit code: 0 if nothing is wrong, 1 if something is, or if there is no record to read, 2 for a wrong command line.)"};

struct ExplainOptions {
  Places places;
  bool json = false;
};

void add_explain_options(CLI::App& app, ExplainOptions& options) {
  add_places(app, options.places);
  app.add_flag("--json", options.json, "one line of JSON instead of text");
}

std::string last_of(const ScanEntry& scan_entry) {
  if (scan_entry.record.operations.empty()) return "-";
  const auto& last = scan_entry.record.operations.back();
  return last.name.to_string() + (last.code == Code::ok ? "" : fmt::format(" ({})", name(last.code)));
}

std::string row_of(const Account& account, uint32_t rank) {
  const auto* scan_entry = account.ranks[rank];
  if (scan_entry == nullptr) return fmt::format("  {:>4}  {}: no record\n", rank, who(account, rank));
  const auto& record = scan_entry->record;
  const auto* running = current(*scan_entry);
  std::string pending;
  if (running != nullptr) {
    for (const auto other : running->pending) pending += (pending.empty() ? "" : ",") + fmt::format("{}", other);
    if (running->pending_count > running->pending.size()) pending += fmt::format(",… ({})", running->pending_count);
  }
  return fmt::format("  {:>4}  {:<14} {:>8}  {:<24} {:>9} {:>9}  {}\n", rank, record.host, record.pid, last_of(*scan_entry),
                     format_duration(since(account, *scan_entry)), pending.empty() ? "-" : pending, doing(*scan_entry));
}

std::string text_of(const Account& account) {
  auto text = title_of(account) + "\n";
  if (account.findings.empty()) text += "Nothing is wrong: nobody is waited for, and the last operations ended well.\n";
  for (const auto& finding : account.findings) text += "* " + finding.text + "\n";
  text += fmt::format("\n  {:>4}  {:<14} {:>8}  {:<24} {:>9} {:>9}  {}\n", "rank", "host", "pid", "last ended", "since",
                      "waits for", "state");
  for (uint32_t rank = 0; rank < account.world; ++rank) text += row_of(account, rank);
  return text + "\n";
}

const char* name(Life life) {
  constexpr const char* names[] = {"runs", "stopped", "left", "gone", "unknown"};
  return names[static_cast<size_t>(life)];
}

nlohmann::ordered_json json_of(const Account& account, uint32_t rank) {
  nlohmann::ordered_json json{{"rank", rank}};
  const auto* scan_entry = account.ranks[rank];
  json["found"] = scan_entry != nullptr;
  if (scan_entry == nullptr) return json;
  json["host"] = scan_entry->record.host;
  json["pid"] = scan_entry->record.pid;
  json["source"] = scan_entry->source;
  json["process"] = name(scan_entry->life);
  json["state"] = doing(*scan_entry);
  json["since_ns"] = since(account, *scan_entry);
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

std::string json_of(const std::vector<Account>& accounts, const std::vector<std::string>& troubles) {
  nlohmann::ordered_json json{{"groups", nlohmann::ordered_json::array()}, {"not_read", troubles}};
  for (const auto& account : accounts) {
    nlohmann::ordered_json group{{"run", fmt::format("{:016x}", account.run)},
                                 {"group", account.group},
                                 {"epoch", account.epoch},
                                 {"world_size", account.world}};
    for (const auto& finding : account.findings)
      group["findings"].push_back({{"cause", name(finding.cause)}, {"ranks", finding.ranks}, {"text", finding.text}});
    if (account.findings.empty()) group["findings"] = nlohmann::ordered_json::array();
    for (uint32_t rank = 0; rank < account.world; ++rank) group["ranks"].push_back(json_of(account, rank));
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
  const auto scan_entries = look_at(options.places);
  if (!scan_entries.ok()) return usage_error(explain_text.name, scan_entries.status().message());
  const auto accounts = accounts_of(scan_entries->all);
  if (options.json) {
    fmt::print("{}", json_of(accounts, scan_entries->troubles));
  } else {
    for (const auto& account : accounts) fmt::print("{}", text_of(account));
  }
  for (const auto& trouble : scan_entries->troubles) fmt::print(stderr, "unisono explain: {}\n", trouble);
  for (const auto& scan_entry : scan_entries->all) {
    if (!scan_entry.record.note.empty())
      fmt::print(stderr, "unisono explain: {}: the record is not where it was asked to be: {}\n", scan_entry.source,
                 scan_entry.record.note);
  }
  if (accounts.empty())
    fmt::print(stderr, "unisono explain: no record {}\n",
               options.places.paths.empty() ? "of a process that runs here" : "there");
  const bool wrong =
      std::any_of(accounts.begin(), accounts.end(), [](const Account& account) { return !account.findings.empty(); });
  return wrong || accounts.empty() ? 1 : 0;
}

}  // namespace unisono::cli

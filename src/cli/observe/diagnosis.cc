#include "cli/observe/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "cli/common/text.h"

namespace unisono::cli {
namespace {

using record::CallName;
using record::Numbering;
using record::Phase;
using record::RunningOperation;

const char* words_of(Phase phase) {
  switch (phase) {
    case Phase::begun: return "begun";
    case Phase::contributions: return "waits for contributions";
    case Phase::results: return "waits for results";
    case Phase::sending: return "waits until its data is taken";
    case Phase::working: return "at work";
  }
  return "";
}

std::string sentence(const RunningOperation& running) {
  const bool has_round = running.phase != Phase::begun;
  return fmt::format("{}: {}{}", running.name.to_string(), words_of(running.phase),
                     has_round ? fmt::format(", round {}", running.round) : "");
}

bool is_here(const GroupDiagnosis& diagnosis, uint32_t rank) {
  return rank < diagnosis.ranks.size() && diagnosis.ranks[rank] != nullptr;
}

Nanos start_of(const ScanEntry& scan_entry, const RunningOperation& running) { return scan_entry.record.wall(running.started); }

// Returns the highest number of any operation that the rank has begun, or -1 if there is none. Only operations that are
// numbered by the order of calls (by_order) count.
int64_t reached(const ScanEntry& scan_entry) {
  int64_t number = -1;
  const auto look = [&](const CallName& name) {
    if (name.numbering == Numbering::by_order)
      number = std::max(number, static_cast<int64_t>(std::min<uint64_t>(name.number, INT64_MAX)));
  };
  for (const auto& operation : scan_entry.record.operations) look(operation.name);
  for (const auto& running : scan_entry.record.running) look(running.name);
  return number;
}

class Diagnoser {
 public:
  explicit Diagnoser(GroupDiagnosis& diagnosis) : diagnosis_(diagnosis) {}

  void run() {
    find_gone_and_stopped();
    find_differing_calls();
    find_waiting();
    find_missing_calls();
    find_unseen();
    find_lost_links();
    find_slow();
    find_failures();
  }

 private:
  void add(Cause cause, std::vector<uint32_t> ranks, std::string text) {
    for (const auto rank : ranks) blamed_.insert(rank);
    diagnosis_.findings.push_back({cause, std::move(ranks), std::move(text)});
  }
  std::string ago(Nanos then) const { return format_duration(std::max<Nanos>(0, diagnosis_.now - then)); }

  std::string waiters_text(uint32_t rank) const {
    const auto at = diagnosis_.waiters.find(rank);
    if (at == diagnosis_.waiters.end()) return "";
    Nanos first = diagnosis_.now;
    for (const auto waiter : at->second) {
      if (const auto* running = current(*diagnosis_.ranks[waiter]))
        first = std::min(first, start_of(*diagnosis_.ranks[waiter], *running));
    }
    return fmt::format("; {} {} waited for it for {}", format_ranks(at->second), at->second.size() == 1 ? "has" : "have",
                       ago(first));
  }

  // Describes the last operation of the rank: "in all_reduce 17: waits for results, round 1", or "after all_reduce 16, which
  // ended 1.2 s ago".
  std::string last_words(const ScanEntry& scan_entry) const {
    if (const auto* running = current(scan_entry)) {
      const auto what = running->phase == Phase::begun ? running->name.to_string() : sentence(*running);
      return fmt::format("in {}, begun {} ago", what, ago(start_of(scan_entry, *running)));
    }
    if (scan_entry.record.begun > scan_entry.record.ended) return "in an operation that had just begun";
    if (scan_entry.record.operations.empty()) return "before its first operation";
    const auto& last = scan_entry.record.operations.back();
    return fmt::format("after {}, which ended {} ago", last.name.to_string(), ago(scan_entry.record.wall(last.ended)));
  }

  void find_gone_and_stopped() {
    std::vector<uint32_t> gone;
    size_t seen = 0;
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank)) continue;
      ++seen;
      if (diagnosis_.ranks[rank]->life == Life::gone) gone.push_back(rank);
    }
    find_waiting();
    const bool all = gone.size() == seen && seen > 1;
    if (all) {
      everybody_gone_ = true;
      add(Cause::gone, {},
          fmt::format("All ranks seen here ({}) are gone without having left the group: the job was killed as a whole, "
                      "crashed, or ended without closing its group.",
                      format_ranks(gone)));
    }
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank)) continue;
      const auto& scan_entry = *diagnosis_.ranks[rank];
      if (scan_entry.life == Life::gone && !all) {
        add(Cause::gone, {rank},
            fmt::format("{} is gone without having left the group (killed, crashed, or ended without closing it), {}{}.",
                        rank_name(diagnosis_, rank), last_words(scan_entry), waiters_text(rank)));
      }
      if (scan_entry.life == Life::stopped) {
        add(Cause::stopped, {rank},
            fmt::format("{} is stopped (by SIGSTOP or a debugger), {}{}.", rank_name(diagnosis_, rank), last_words(scan_entry),
                        waiters_text(rank)));
      }
    }
  }

  // Finds operations that have the same number on several ranks although the calls are different.
  void find_differing_calls() {
    std::map<uint64_t, std::map<std::string, std::vector<uint32_t>>> calls;
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank)) continue;
      const auto look = [&](const CallName& name) {
        if (name.numbering == Numbering::by_order) calls[name.number][name.call()].push_back(rank);
      };
      for (const auto& operation : diagnosis_.ranks[rank]->record.operations) look(operation.name);
      for (const auto& running : diagnosis_.ranks[rank]->record.running) look(running.name);
    }
    for (const auto& [number, by_call] : calls) {
      if (by_call.size() < 2) continue;
      std::string text = fmt::format("Operation {} was not the same on all ranks:", number);
      std::vector<uint32_t> fewest;
      for (const auto& [call, ranks] : by_call) {
        text += fmt::format("{} {} called {}", text.ends_with(':') ? "" : ",", format_ranks(ranks), call);
        if (fewest.empty() || ranks.size() < fewest.size()) fewest = ranks;
      }
      return add(Cause::differs, fewest, text + ".");
    }
  }

  void find_waiting() {
    diagnosis_.waiters.clear();
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank) || diagnosis_.ranks[rank]->life == Life::left) continue;
      const auto* running = current(*diagnosis_.ranks[rank]);
      if (running == nullptr || diagnosis_.now - start_of(*diagnosis_.ranks[rank], *running) < waiting_threshold) continue;
      for (const auto pending : running->pending) diagnosis_.waiters[pending].push_back(rank);
    }
  }

  void find_missing_calls() {
    int64_t furthest = -1;
    for (const auto* scan_entry : diagnosis_.ranks) {
      if (scan_entry != nullptr && scan_entry->life != Life::left && current(*scan_entry) != nullptr)
        furthest = std::max(furthest, reached(*scan_entry));
    }
    for (const auto& [rank, waiters] : diagnosis_.waiters) {
      if (!is_here(diagnosis_, rank) || blamed_.contains(rank)) continue;
      const auto& scan_entry = *diagnosis_.ranks[rank];
      if (scan_entry.life == Life::left || current(scan_entry) != nullptr ||
          scan_entry.record.begun > scan_entry.record.ended || reached(scan_entry) >= furthest)
        continue;
      const auto& wanted = current(*diagnosis_.ranks[waiters.front()])->name;
      add(Cause::not_called, {rank},
          fmt::format("{} has not called {}: it is computing, {}{}.", rank_name(diagnosis_, rank), wanted.to_string(),
                      last_words(scan_entry), waiters_text(rank)));
    }
  }

  void find_unseen() {
    for (const auto& [rank, waiters] : diagnosis_.waiters) {
      if (is_here(diagnosis_, rank) || blamed_.contains(rank)) continue;
      add(Cause::not_seen, {rank},
          fmt::format("{} is waited for, and no record of it was found here: look on its host{}.", rank_name(diagnosis_, rank),
                      waiters_text(rank)));
    }
  }

  void find_lost_links() {
    std::map<uint32_t, std::vector<uint32_t>> ranks_by_lost_peer;
    Nanos first = diagnosis_.now;
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank) || diagnosis_.ranks[rank]->life == Life::gone) continue;
      for (uint32_t other = 0; other < diagnosis_.world; ++other) {
        const auto lost = diagnosis_.ranks[rank]->record.links[other].lost_at;
        if (lost == 0 || blamed_.contains(other) || (is_here(diagnosis_, other) && diagnosis_.ranks[other]->life == Life::left))
          continue;
        ranks_by_lost_peer[other].push_back(rank);
        first = std::min(first, diagnosis_.ranks[rank]->record.wall(lost));
      }
    }
    for (const auto& [other, ranks] : ranks_by_lost_peer) {
      add(Cause::link_lost, {other},
          fmt::format("{} lost the link to {} {} ago.", format_ranks(ranks), rank_name(diagnosis_, other), ago(first)));
    }
  }

  // This is called if all pending ranks are alive and have made the call. Then a rank is slow if it does not wait for any
  // message itself. If there is no such rank, either a link is slow, or the rank for which most other ranks wait.
  void find_slow() {
    if (!diagnosis_.findings.empty() && !everybody_gone_) return;
    for (const auto& [rank, waiters] : diagnosis_.waiters) {
      if (!is_here(diagnosis_, rank) || blamed_.contains(rank)) continue;
      const auto* running = current(*diagnosis_.ranks[rank]);
      if (running == nullptr || running->phase == Phase::contributions || running->phase == Phase::results) continue;
      add(Cause::slow, {rank},
          fmt::format("{} is the one that waits for no message: {}{}.", rank_name(diagnosis_, rank), sentence(*running),
                      waiters_text(rank)));
    }
    if (diagnosis_.waiters.empty() || (!diagnosis_.findings.empty() && !everybody_gone_)) return;
    const auto most = std::max_element(diagnosis_.waiters.begin(), diagnosis_.waiters.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    if (blamed_.contains(most->first)) return;
    add(Cause::slow, {most->first},
        fmt::format(
            "All ranks are in the operation; most wait for {}{}. The links between them, or the work of that rank, are slow.",
            rank_name(diagnosis_, most->first), waiters_text(most->first)));
  }

  // Adds findings about ranks whose last operation failed. If several ranks failed in the same operation and with the same
  // code, they share one finding.
  void find_failures() {
    std::map<std::tuple<std::string, Code>, std::vector<uint32_t>> failures;
    // For each failure and each rank: how many other ranks waited for this rank.
    std::map<std::tuple<std::string, Code>, std::map<uint32_t, size_t>> pending;
    Nanos last = 0;
    for (uint32_t rank = 0; rank < diagnosis_.world; ++rank) {
      if (!is_here(diagnosis_, rank) || diagnosis_.ranks[rank]->record.operations.empty()) continue;
      const auto& record = diagnosis_.ranks[rank]->record;
      const auto& operation = record.operations.back();
      if (operation.code == Code::ok) continue;
      const auto key = std::tuple(operation.name.to_string(), operation.code);
      failures[key].push_back(rank);
      if (operation.pending >= 0) ++pending[key][static_cast<uint32_t>(operation.pending)];
      last = std::max(last, record.wall(operation.ended));
    }
    for (const auto& [key, ranks] : failures) {
      const auto& [operation, code] = key;
      // Names the rank for which most other ranks waited. Some ranks only heard of the failure from others. The rank for which
      // they waited did not cause it.
      size_t most = 0;
      for (const auto& [rank, count] : pending[key]) most = std::max(most, count);
      std::vector<uint32_t> blamed;
      for (const auto& [rank, count] : pending[key]) {
        if (count == most) blamed.push_back(rank);
      }
      const auto waited = blamed.empty() ? std::string() : fmt::format("; waited for: {}", format_ranks(blamed));
      add(Cause::failed, blamed,
          fmt::format("{} ended as {} at {}, {} ago{}.", operation, name(code), format_ranks(ranks), ago(last), waited));
    }
  }

  GroupDiagnosis& diagnosis_;
  std::set<uint32_t> blamed_;
  bool everybody_gone_ = false;
};

}  // namespace

const char* name(Cause cause) {
  constexpr const char* names[] = {"gone", "stopped", "differs", "not_called", "not_seen", "link_lost", "failed", "slow"};
  return names[static_cast<size_t>(cause)];
}

std::vector<GroupDiagnosis> diagnose(const std::vector<ScanEntry>& scan_entries) {
  std::map<std::tuple<uint64_t, uint32_t, uint32_t, uint32_t>, GroupDiagnosis> groups;
  for (const auto& scan_entry : scan_entries) {
    const auto& record = scan_entry.record;
    auto& diagnosis = groups[{record.run, record.epoch, record.group, record.world}];
    diagnosis.run = record.run;
    diagnosis.epoch = record.epoch;
    diagnosis.group = record.group;
    diagnosis.world = record.world;
    diagnosis.ranks.resize(diagnosis.world, nullptr);
    // If a process still runs, a file may contain a record of it, too. The record that changed last is used.
    auto& entry = diagnosis.ranks[record.rank];
    if (entry == nullptr || last_change(scan_entry) >= last_change(*entry)) entry = &scan_entry;
  }
  std::vector<GroupDiagnosis> diagnoses;
  for (auto& [key, diagnosis] : groups) {
    bool lives = false;
    Nanos last = 0, seen = 0;
    for (const auto* scan_entry : diagnosis.ranks) {
      if (scan_entry == nullptr) continue;
      lives |= scan_entry->life == Life::runs || scan_entry->life == Life::stopped;
      seen = std::max(seen, scan_entry->seen);
      last = std::max(last, last_change(*scan_entry));
    }
    diagnosis.now = lives ? seen : last;
    Diagnoser(diagnosis).run();
    diagnoses.push_back(std::move(diagnosis));
  }
  return diagnoses;
}

std::string title_of(const GroupDiagnosis& diagnosis) {
  const auto seen = static_cast<size_t>(
      std::count_if(diagnosis.ranks.begin(), diagnosis.ranks.end(), [](const auto* s) { return s != nullptr; }));
  const auto what = diagnosis.group == 1 ? std::string("group") : fmt::format("sub-group {:08x}", diagnosis.group);
  return fmt::format("{} of run {:08x}, epoch {}: {} ranks{}", what, diagnosis.run >> 32, diagnosis.epoch, diagnosis.world,
                     seen == diagnosis.world ? "" : fmt::format(", records of {}", seen));
}

std::string rank_name(const GroupDiagnosis& diagnosis, uint32_t rank) {
  if (is_here(diagnosis, rank))
    return fmt::format("rank {} (host {}, pid {})", rank, diagnosis.ranks[rank]->record.host,
                       diagnosis.ranks[rank]->record.pid);
  for (const auto* scan_entry : diagnosis.ranks) {
    if (scan_entry != nullptr && rank < scan_entry->record.links.size())
      return fmt::format("rank {} ({})", rank, scan_entry->record.links[rank].place);
  }
  return fmt::format("rank {}", rank);
}

const RunningOperation* current(const ScanEntry& scan_entry) {
  const auto& running = scan_entry.record.running;
  const auto oldest =
      std::min_element(running.begin(), running.end(), [](const auto& a, const auto& b) { return a.started < b.started; });
  return oldest == running.end() ? nullptr : &*oldest;
}

std::string activity_of(const ScanEntry& scan_entry) {
  std::string text = "computing";
  if (const auto* running = current(scan_entry)) text = sentence(*running);
  else if (scan_entry.record.begun > scan_entry.record.ended) text = "in an operation";
  switch (scan_entry.life) {
    case Life::stopped: return "stopped; " + text;
    case Life::gone: return "gone; " + text;
    case Life::left: return "left";
    default: return text;
  }
}

Nanos last_change(const ScanEntry& scan_entry) {
  const auto& record = scan_entry.record;
  Nanos last = std::max(record.monotonic_start, record.left_at);
  if (!record.operations.empty()) last = std::max(last, record.operations.back().ended);
  for (const auto& running : record.running) last = std::max(last, std::max(running.started, running.progress));
  return record.wall(last);
}

Nanos since(const GroupDiagnosis& diagnosis, const ScanEntry& scan_entry) {
  const auto& record = scan_entry.record;
  Nanos begun = record.operations.empty() ? record.monotonic_start : record.operations.back().ended;
  if (const auto* running = current(scan_entry)) begun = running->started;
  if (scan_entry.life == Life::left) begun = record.left_at;
  return std::max<Nanos>(0, diagnosis.now - record.wall(begun));
}

}  // namespace unisono::cli

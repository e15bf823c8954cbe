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

bool is_here(const Account& account, uint32_t rank) { return rank < account.ranks.size() && account.ranks[rank] != nullptr; }

Nanos start_of(const ScanEntry& scan_entry, const RunningOperation& running) { return scan_entry.record.wall(running.started); }

// The number of the last operation, numbered by order, that the rank has begun; -1: none.
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

class Detective {
 public:
  explicit Detective(Account& account) : account_(account) {}

  void investigate() {
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
    account_.findings.push_back({cause, std::move(ranks), std::move(text)});
  }
  std::string ago(Nanos then) const { return format_duration(std::max<Nanos>(0, account_.now - then)); }

  std::string waiters_text(uint32_t rank) const {
    const auto at = account_.waiters.find(rank);
    if (at == account_.waiters.end()) return "";
    Nanos first = account_.now;
    for (const auto waiter : at->second) {
      if (const auto* running = current(*account_.ranks[waiter]))
        first = std::min(first, start_of(*account_.ranks[waiter], *running));
    }
    return fmt::format("; {} {} for it since {}", format_ranks(at->second), at->second.size() == 1 ? "waits" : "wait",
                       ago(first));
  }

  // The rank's last operation: "in all_reduce 17: waits for results, round 1" or "after all_reduce 16, which ended 1.2 s ago".
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
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank)) continue;
      ++seen;
      if (account_.ranks[rank]->life == Life::gone) gone.push_back(rank);
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
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank)) continue;
      const auto& scan_entry = *account_.ranks[rank];
      if (scan_entry.life == Life::gone && !all) {
        add(Cause::gone, {rank},
            fmt::format("{} is gone without having left the group (killed, crashed, or ended without closing it), {}{}.",
                        who(account_, rank), last_words(scan_entry), waiters_text(rank)));
      }
      if (scan_entry.life == Life::stopped) {
        add(Cause::stopped, {rank},
            fmt::format("{} is stopped (by SIGSTOP or a debugger), {}{}.", who(account_, rank), last_words(scan_entry),
                        waiters_text(rank)));
      }
    }
  }

  // Under one number, ranks must have called the same.
  void find_differing_calls() {
    std::map<uint64_t, std::map<std::string, std::vector<uint32_t>>> calls;
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank)) continue;
      const auto look = [&](const CallName& name) {
        if (name.numbering == Numbering::by_order) calls[name.number][name.call()].push_back(rank);
      };
      for (const auto& operation : account_.ranks[rank]->record.operations) look(operation.name);
      for (const auto& running : account_.ranks[rank]->record.running) look(running.name);
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
    account_.waiters.clear();
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank) || account_.ranks[rank]->life == Life::left) continue;
      const auto* running = current(*account_.ranks[rank]);
      if (running == nullptr || account_.now - start_of(*account_.ranks[rank], *running) < patience) continue;
      for (const auto pending : running->pending) account_.waiters[pending].push_back(rank);
    }
  }

  void find_missing_calls() {
    int64_t furthest = -1;
    for (const auto* scan_entry : account_.ranks) {
      if (scan_entry != nullptr && scan_entry->life != Life::left && current(*scan_entry) != nullptr)
        furthest = std::max(furthest, reached(*scan_entry));
    }
    for (const auto& [rank, waiters] : account_.waiters) {
      if (!is_here(account_, rank) || blamed_.contains(rank)) continue;
      const auto& scan_entry = *account_.ranks[rank];
      if (scan_entry.life == Life::left || current(scan_entry) != nullptr ||
          scan_entry.record.begun > scan_entry.record.ended || reached(scan_entry) >= furthest)
        continue;
      const auto& wanted = current(*account_.ranks[waiters.front()])->name;
      add(Cause::not_called, {rank},
          fmt::format("{} has not called {}: it is computing, {}{}.", who(account_, rank), wanted.to_string(),
                      last_words(scan_entry), waiters_text(rank)));
    }
  }

  void find_unseen() {
    for (const auto& [rank, waiters] : account_.waiters) {
      if (is_here(account_, rank) || blamed_.contains(rank)) continue;
      add(Cause::not_seen, {rank},
          fmt::format("{} is waited for, and no record of it was found here: look on its host{}.", who(account_, rank),
                      waiters_text(rank)));
    }
  }

  void find_lost_links() {
    std::map<uint32_t, std::vector<uint32_t>> losers;
    Nanos first = account_.now;
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank) || account_.ranks[rank]->life == Life::gone) continue;
      for (uint32_t other = 0; other < account_.world; ++other) {
        const auto lost = account_.ranks[rank]->record.links[other].lost_at;
        if (lost == 0 || blamed_.contains(other) || (is_here(account_, other) && account_.ranks[other]->life == Life::left))
          continue;
        losers[other].push_back(rank);
        first = std::min(first, account_.ranks[rank]->record.wall(lost));
      }
    }
    for (const auto& [other, ranks] : losers) {
      add(Cause::link_lost, {other},
          fmt::format("{} lost the link to {} {} ago.", format_ranks(ranks), who(account_, other), ago(first)));
    }
  }

  // All pending ranks have made the call and are alive: a rank that waits for none holds the others up, or its links do.
  void find_slow() {
    if (!account_.findings.empty() && !everybody_gone_) return;
    for (const auto& [rank, waiters] : account_.waiters) {
      if (!is_here(account_, rank) || blamed_.contains(rank)) continue;
      const auto* running = current(*account_.ranks[rank]);
      if (running == nullptr || running->phase == Phase::contributions || running->phase == Phase::results) continue;
      add(Cause::slow, {rank},
          fmt::format("{} is the one that waits for no message: {}{}.", who(account_, rank), sentence(*running),
                      waiters_text(rank)));
    }
    if (account_.waiters.empty() || (!account_.findings.empty() && !everybody_gone_)) return;
    const auto most = std::max_element(account_.waiters.begin(), account_.waiters.end(),
                                       [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    if (blamed_.contains(most->first)) return;
    add(Cause::slow, {most->first},
        fmt::format(
            "All ranks are in the operation; most wait for {}{}. The links between them, or the work of that rank, are slow.",
            who(account_, most->first), waiters_text(most->first)));
  }

  // Adds the failed last operations, one finding for all ranks with the same operation and code.
  void find_failures() {
    std::map<std::tuple<std::string, Code>, std::vector<uint32_t>> failures;
    std::map<std::tuple<std::string, Code>, std::map<uint32_t, size_t>> pending;  // and by how many
    Nanos last = 0;
    for (uint32_t rank = 0; rank < account_.world; ++rank) {
      if (!is_here(account_, rank) || account_.ranks[rank]->record.operations.empty()) continue;
      const auto& record = account_.ranks[rank]->record;
      const auto& operation = record.operations.back();
      if (operation.code == Code::ok) continue;
      const auto key = std::tuple(operation.name.to_string(), operation.code);
      failures[key].push_back(rank);
      if (operation.pending >= 0) ++pending[key][static_cast<uint32_t>(operation.pending)];
      last = std::max(last, record.wall(operation.ended));
    }
    for (const auto& [key, ranks] : failures) {
      const auto& [operation, code] = key;
      // Some ranks learned of the failure from others while they waited for a third: take the rank that most waited for.
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

  Account& account_;
  std::set<uint32_t> blamed_;
  bool everybody_gone_ = false;
};

}  // namespace

const char* name(Cause cause) {
  constexpr const char* names[] = {"gone", "stopped", "differs", "not_called", "not_seen", "link_lost", "failed", "slow"};
  return names[static_cast<size_t>(cause)];
}

std::vector<Account> accounts_of(const std::vector<ScanEntry>& scan_entries) {
  std::map<std::tuple<uint64_t, uint32_t, uint32_t, uint32_t>, Account> groups;
  for (const auto& scan_entry : scan_entries) {
    const auto& record = scan_entry.record;
    auto& account = groups[{record.run, record.epoch, record.group, record.world}];
    account.run = record.run;
    account.epoch = record.epoch;
    account.group = record.group;
    account.world = record.world;
    account.ranks.resize(account.world, nullptr);
    // A file that was written on request may describe a process that runs here, too: the later record counts.
    auto& place = account.ranks[record.rank];
    if (place == nullptr || last_sign(scan_entry) >= last_sign(*place)) place = &scan_entry;
  }
  std::vector<Account> accounts;
  for (auto& [key, account] : groups) {
    bool lives = false;
    Nanos last = 0, seen = 0;
    for (const auto* scan_entry : account.ranks) {
      if (scan_entry == nullptr) continue;
      lives |= scan_entry->life == Life::runs || scan_entry->life == Life::stopped;
      seen = std::max(seen, scan_entry->seen);
      last = std::max(last, last_sign(*scan_entry));
    }
    account.now = lives ? seen : last;
    Detective(account).investigate();
    accounts.push_back(std::move(account));
  }
  return accounts;
}

std::string title_of(const Account& account) {
  const auto seen = static_cast<size_t>(
      std::count_if(account.ranks.begin(), account.ranks.end(), [](const auto* s) { return s != nullptr; }));
  const auto what = account.group == 1 ? std::string("group") : fmt::format("sub-group {:08x}", account.group);
  return fmt::format("{} of run {:08x}, epoch {}: {} ranks{}", what, account.run >> 32, account.epoch, account.world,
                     seen == account.world ? "" : fmt::format(", records of {}", seen));
}

std::string who(const Account& account, uint32_t rank) {
  if (is_here(account, rank))
    return fmt::format("rank {} (host {}, pid {})", rank, account.ranks[rank]->record.host, account.ranks[rank]->record.pid);
  for (const auto* scan_entry : account.ranks) {
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

std::string doing(const ScanEntry& scan_entry) {
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

Nanos last_sign(const ScanEntry& scan_entry) {
  const auto& record = scan_entry.record;
  Nanos last = std::max(record.monotonic_start, record.left_at);
  if (!record.operations.empty()) last = std::max(last, record.operations.back().ended);
  for (const auto& running : record.running) last = std::max(last, std::max(running.started, running.progress));
  return record.wall(last);
}

Nanos since(const Account& account, const ScanEntry& scan_entry) {
  const auto& record = scan_entry.record;
  Nanos begun = record.operations.empty() ? record.monotonic_start : record.operations.back().ended;
  if (const auto* running = current(scan_entry)) begun = running->started;
  if (scan_entry.life == Life::left) begun = record.left_at;
  return std::max<Nanos>(0, account.now - record.wall(begun));
}

}  // namespace unisono::cli

#include "cli/common/job_outcome.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/spawn.h"
#include "cli/common/text.h"

namespace unisono::cli {

JobOutcome::JobOutcome(std::vector<std::string> hosts) : ranks_(hosts.size()) {
  for (size_t rank = 0; rank < hosts.size(); ++rank) ranks_[rank].host = std::move(hosts[rank]);
}

void JobOutcome::allow_failure(uint32_t rank) {
  if (rank < ranks_.size()) ranks_[rank].may_fail = true;
}

void JobOutcome::started(uint32_t rank, uint32_t pid) {
  if (rank >= ranks_.size()) return;
  ranks_[rank].state = State::running;
  ranks_[rank].pid = pid;
}

void JobOutcome::ended(uint32_t rank, const Ended& ended, bool asked) {
  if (rank >= ranks_.size()) return;
  ranks_[rank].state = ended.by_signal ? State::killed : State::exited;
  ranks_[rank].ended = ended;
  ranks_[rank].asked = asked;
  if (ended.by_signal || ended.code != 0) note_failure(rank);
}

void JobOutcome::refused(uint32_t rank, const Refused& refused) {
  if (rank >= ranks_.size()) return;
  ranks_[rank].state = State::refused;
  ranks_[rank].message = refused.message;
  ranks_[rank].error = refused.error;
  note_failure(rank);
}

void JobOutcome::lost(uint32_t rank, const std::string& why) {
  if (rank >= ranks_.size() || ranks_[rank].state > State::running) return;
  ranks_[rank].state = State::lost;
  ranks_[rank].message = why;
  note_failure(rank);
}

void JobOutcome::note_failure(uint32_t rank) {
  if (first_ < 0 && !ranks_[rank].may_fail) first_ = rank;
}

uint32_t JobOutcome::running_count() const {
  return static_cast<uint32_t>(
      std::count_if(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.state == State::running; }));
}

std::string JobOutcome::describe(uint32_t number) const {
  const auto& rank = ranks_[number];
  std::string who = fmt::format("rank {}", number);
  if (rank.pid != 0) {
    who += rank.host.empty() ? fmt::format(" (pid {})", rank.pid) : fmt::format(" (host {}, pid {})", rank.host, rank.pid);
  } else if (!rank.host.empty()) {
    who += fmt::format(" (host {})", rank.host);
  }
  const auto after = format_duration(rank.ended.after);
  switch (rank.state) {
    case State::killed:
      return fmt::format("{} was killed by signal {} ({}) after {}{}", who, rank.ended.code, signal_name(rank.ended.code),
                         after, rank.ended.core_dumped ? " (core dumped)" : "");
    case State::exited: return fmt::format("{} exited with code {} after {}", who, rank.ended.code, after);
    case State::refused: return fmt::format("{}: {}", who, rank.message);
    default: return fmt::format("{} was lost: {}", who, rank.message);
  }
}

std::string JobOutcome::end_text(const Rank& rank) const {
  switch (rank.state) {
    case State::waiting: return "not started";
    case State::running: return "still running";
    case State::exited:
      if (rank.ended.code == 0) return "finished";
      return rank.asked ? fmt::format("ended with code {} on request", rank.ended.code)
                        : fmt::format("exited with code {}", rank.ended.code);
    case State::killed:
      return rank.asked ? "ended" : fmt::format("killed by signal {} ({})", rank.ended.code, signal_name(rank.ended.code));
    case State::refused: return "not startable";
    case State::lost: return "lost";
  }
  return "unknown";
}

std::string JobOutcome::others() const {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == first_) continue;
    const auto text = end_text(ranks_[rank]);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& entry) { return entry.first == text; });
    if (group == groups.end()) group = groups.insert(groups.end(), {text, {}});
    group->second.push_back(rank);
  }
  std::string out;
  for (const auto& [text, members] : groups) {
    const bool verb = text.starts_with("exited") || text.starts_with("finished") || text.starts_with("ended with");
    const char* was = verb ? "" : members.size() == 1 ? "was " : "were ";
    out += fmt::format("{}{} {}{}", out.empty() ? "" : "; ", format_ranks(members), was, text);
  }
  return out;
}

int JobOutcome::exit_code() const {
  if (first_ < 0) return 0;
  const auto& rank = ranks_[static_cast<size_t>(first_)];
  switch (rank.state) {
    case State::killed: return 128 + rank.ended.code;
    case State::exited: return rank.ended.code;
    case State::refused: return exit_code_of_start_error(rank.error);
    default: return exit_code_launcher;
  }
}

}  // namespace unisono::cli

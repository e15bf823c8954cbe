#include "cli/launch/injected_faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "cli/common/placement.h"
#include "cli/common/text.h"

namespace unisono::cli {
namespace {

constexpr const char* options[] = {"--kill-rank", "--stop-rank", "--resume-rank"};
constexpr const char* fault_verbs[] = {"killed", "stopped", "resumed"};

const char* option_of(FaultKind kind) { return options[static_cast<size_t>(kind)]; }

std::string as_typed(const Fault& fault) {
  return fmt::format("{} {}@{}", option_of(fault.kind), fault.rank, format_duration(fault.at));
}

Status refuse(const Fault& fault, const std::string& why) { return Status(Code::invalid, as_typed(fault) + ": " + why); }

}  // namespace

Result<Fault> parse_fault(FaultKind kind, std::string_view text) {
  const auto at = text.find('@');
  const auto rank = parse_count(text.substr(0, at), world_size_max - 1);
  const auto time =
      at == std::string_view::npos ? Result<Nanos>(Status(Code::invalid, "")) : parse_duration(text.substr(at + 1));
  if (!rank.ok() || !time.ok())
    return Status(Code::invalid, fmt::format("{} '{}': expected RANK@TIME, such as 1@2s", option_of(kind), text));
  return Fault{kind, static_cast<uint32_t>(*rank), *time};
}

Result<std::vector<Fault>> arrange_faults(std::vector<Fault> faults, uint32_t world_size) {
  std::stable_sort(faults.begin(), faults.end(), [](const Fault& a, const Fault& b) { return a.at < b.at; });
  enum class State : uint8_t { running, stopped, dead };
  std::map<uint32_t, State> states;
  for (const auto& fault : faults) {
    if (fault.rank >= world_size) return refuse(fault, fmt::format("there are ranks 0 to {}", world_size - 1));
    auto& state = states[fault.rank];
    if (state == State::dead) return refuse(fault, "it is dead by then");
    if (fault.kind == FaultKind::stop && state == State::stopped) return refuse(fault, "it is stopped already");
    if (fault.kind == FaultKind::resume && state != State::stopped) return refuse(fault, "it is not stopped then");
    state = fault.kind == FaultKind::kill ? State::dead : fault.kind == FaultKind::stop ? State::stopped : State::running;
  }
  if (victims_of(faults).size() == world_size)
    return Status(Code::invalid, fmt::format("all {} ranks are killed or stopped: no rank would be left", world_size));
  return faults;
}

std::vector<uint32_t> victims_of(std::span<const Fault> faults) {
  std::vector<uint32_t> ranks;
  for (const auto& fault : faults) ranks.push_back(fault.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string describe(const Fault& fault) {
  return fmt::format("rank {} was {}", fault.rank, fault_verbs[static_cast<size_t>(fault.kind)]);
}

int signal_of(FaultKind kind) { return kind == FaultKind::kill ? SIGKILL : kind == FaultKind::stop ? SIGSTOP : SIGCONT; }

}  // namespace unisono::cli

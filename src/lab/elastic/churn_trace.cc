#include "lab/elastic/churn_trace.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "base/concat.h"
#include "base/option_text.h"
#include "base/random.h"

namespace unisono::sim {
namespace {

constexpr std::array action_names{"join", "leave", "kill", "stop", "continue"};

enum class PeerState : uint8_t { away, running, stopped };

// Returns the words of a line. A comment, which begins with '#', is left out.
std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != line.npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

template <typename Number>
bool read_number(std::string_view word, Number& number) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

// Parses the words of a line. Returns "" if they are a valid event, and an error text otherwise.
std::string read_event(const std::vector<std::string_view>& words, ChurnEvent& event) {
  if (words.size() != 3) return concat("bad_line: it has ", words.size(), " words; expected three: seconds, peer, action");
  double seconds = 0;
  if (!read_number(words[0], seconds) || !(seconds >= 0) || seconds > static_cast<double>(timeout_max / second))
    return "bad_time: \"" + std::string(words[0]) + "\" is not between 0 and 30 days, in seconds";
  if (!read_number(words[1], event.peer) || event.peer >= churn_peers_max)
    return concat("bad_peer: \"", words[1], "\" is no number below ", churn_peers_max);
  const auto found = std::ranges::find(action_names, words[2]);
  if (found == action_names.end())
    return "bad_action: \"" + std::string(words[2]) + "\" is none of join, leave, kill, stop, continue";
  event.at = std::llround(seconds * 1e6) * microsecond;
  event.action = static_cast<ChurnAction>(found - action_names.begin());
  return {};
}

// Applies the event to the state of its peer. If the event is impossible in this state, returns an error text; otherwise
// returns "".
std::string apply_event(const ChurnEvent& event, std::vector<PeerState>& states) {
  if (states.size() <= event.peer) states.resize(event.peer + 1, PeerState::away);
  auto& state = states[event.peer];
  const auto peer = concat("peer ", event.peer);
  switch (event.action) {
    case ChurnAction::join:
      if (state != PeerState::away) return "already_there: " + peer;
      state = PeerState::running;
      return {};
    case ChurnAction::resume:
      if (state != PeerState::stopped) return "not_stopped: " + peer;
      state = PeerState::running;
      return {};
    case ChurnAction::stop:
    case ChurnAction::leave:
    case ChurnAction::kill: break;
  }
  if (state == PeerState::away) return "not_there: " + peer;
  // A stopped peer cannot say goodbye, so it can only continue or be killed.
  if (state == PeerState::stopped && event.action != ChurnAction::kill) return "stopped: " + peer;
  state = event.action == ChurnAction::stop ? PeerState::stopped : PeerState::away;
  return {};
}

}  // namespace

const char* name(ChurnAction action) { return action_names[static_cast<size_t>(action)]; }

Result<ChurnTrace> ChurnTrace::parse(std::string_view text) {
  ChurnTrace trace;
  std::vector<PeerState> states;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const auto words = words_of(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (words.empty()) continue;
    ChurnEvent event;
    auto wrong = read_event(words, event);
    if (wrong.empty() && !trace.events.empty() && event.at < trace.events.back().at)
      wrong = "out_of_order: the line before is later";
    if (wrong.empty() && trace.events.size() == churn_events_max)
      wrong = concat("too_long: more than ", churn_events_max, " events");
    if (wrong.empty()) wrong = apply_event(event, states);
    if (!wrong.empty()) return Status(Code::invalid, concat("line ", number, ": ", wrong));
    trace.events.push_back(event);
  }
  return trace;
}

std::string ChurnTrace::to_text() const {
  std::string text = "# seconds peer what\n";
  for (const auto& event : events) {
    char line[80];
    const auto microseconds = static_cast<long long>(event.at / microsecond);
    std::snprintf(line, sizeof line, "%lld.%06lld", microseconds / 1'000'000, microseconds % 1'000'000);
    std::string_view time = line;
    time = time.substr(0, time.find_last_not_of('0') + 1);
    if (time.ends_with('.')) time.remove_suffix(1);
    text += concat(time, " ", event.peer, " ", name(event.action), "\n");
  }
  return text;
}

Status ChurnPlan::check() const {
  using option_text::wrong;
  if (peers == 0 || peers > churn_peers_max) return wrong(concat("peers=", peers, " is not between 1 and ", churn_peers_max));
  if (peers_min == 0 || peers_min > peers) return wrong(concat("peers_min=", peers_min, " is not between 1 and peers=", peers));
  if (period < millisecond || period > timeout_max) return wrong("period is not between 1 ms and 30 days");
  if (duration < 0 || duration > timeout_max) return wrong("duration is not between 0 and 30 days");
  if (static_cast<double>(duration) / static_cast<double>(period) > churn_events_max / 4.0)
    return wrong(concat("duration is too long for events every period: ", churn_events_max / 4, " at most"));
  if (!(kill_share >= 0) || !(stop_share >= 0) || !(kill_share + stop_share <= 1))
    return wrong("kill_share and stop_share are shares, and their sum is at most 1");
  return {};
}

Result<ChurnTrace> make_churn(const ChurnPlan& plan) {
  if (auto checked = plan.check(); !checked.ok()) return checked;
  ChurnTrace trace;
  std::vector<uint32_t> running, away;
  std::vector<bool> stopped(plan.peers);
  for (uint32_t peer = 0; peer < plan.peers; ++peer) {
    trace.events.push_back({.at = 0, .peer = peer, .action = ChurnAction::join});
    running.push_back(peer);
  }
  if (plan.peers_min == plan.peers) return trace;
  Random random(plan.seed);
  const auto gap = [&] {
    return plan.law == ChurnPlan::Law::regular
               ? plan.period
               : static_cast<Nanos>(-std::log1p(-random.unit()) * static_cast<double>(plan.period));
  };
  // The times in a trace are whole microseconds, so there is at least one microsecond between two events.
  for (Nanos at = gap(); at < plan.duration && trace.events.size() < churn_events_max; at += std::max(microsecond, gap())) {
    const bool goes = away.empty() || (running.size() > plan.peers_min && random.chance(0.5));
    auto& from = goes ? running : away;
    const auto which = from.begin() + static_cast<ptrdiff_t>(random.below(from.size()));
    const uint32_t peer = *which;
    from.erase(which);
    (goes ? away : running).push_back(peer);
    auto action = stopped[peer] ? ChurnAction::resume : ChurnAction::join;
    if (goes) {
      const double toss = random.unit();
      action = toss < plan.kill_share                     ? ChurnAction::kill
               : toss < plan.kill_share + plan.stop_share ? ChurnAction::stop
                                                          : ChurnAction::leave;
    }
    stopped[peer] = action == ChurnAction::stop;
    trace.events.push_back({.at = at / microsecond * microsecond, .peer = peer, .action = action});
  }
  return trace;
}

}  // namespace unisono::sim

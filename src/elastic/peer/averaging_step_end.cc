// The ends of rounds and of averaging steps, and the report.
#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "elastic/peer/averaging_step.h"
#include "elastic/peer/moshpit_peer.h"

namespace unisono {

namespace {

constexpr size_t names_max = 16;  // a note names at most this many absent peers; the rounds of the report list all of them

std::string inexact_text(const Layout& layout) {
  std::string size;
  for (const auto axis : layout.dims) size += concat(size.empty() ? "" : "x", axis);
  return concat("the grid ", layout.grid == GridKind::published ? "published" : "chunk_keys",
                " is exact only if full: ", layout.peers.size(), " peers are not as many as ", size);
}

void add_absent(std::vector<AbsentPeer>& all, const AbsentPeer& one) {
  if (std::ranges::find(all, one.id, &AbsentPeer::id) == all.end()) all.push_back(one);
}

// Returns why an averaging step is not exact although this peer knows of no absent peer.
std::string inexact_reason(const MoshpitAveraging& step, const std::vector<RoundSummary>& rounds) {
  for (const auto& round : rounds) {
    if (round.outcome != "averaged") return concat("round ", round.round, ": ", round.outcome);
  }
  if (step.rounds < step.layout.dims.size())
    return concat("the grid has ", step.layout.dims.size(), " axes, and the step had ", step.rounds, " rounds");
  if (step.relaid) return "the layout changed between two rounds";
  return "groups of other lines lacked peers";
}

}  // namespace

// Ends a round in which this peer found no group. The peer keeps its values and weights. In the statistics, such a round counts
// as a group of two members, one of which was absent.
void MoshpitPeer::skip_round(const char* outcome, const std::vector<AbsentPeer>& absent, Nanos now) {
  step_->members_expected += 2;
  ++step_->members_absent;
  for (auto& state : step_->states) state.full = false;
  RoundSummary summary{.round = step_->round, .outcome = outcome};
  for (const auto& one : absent) summary.absent.push_back(label_of(one));
  end_round(std::move(summary), absent, now);
}

void MoshpitPeer::skip_round(const char* outcome, Nanos now) { skip_round(outcome, {}, now); }

void MoshpitPeer::end_round(RoundSummary summary, const std::vector<AbsentPeer>& absent, Nanos now) {
  if (step_ == nullptr) return;
  auto& step = *step_;
  summary.gather_s = std::exchange(step.gather_s, 0);
  step.report.rounds.push_back(std::move(summary));
  for (const auto& one : absent) add_absent(step.absent, one);
  ++step.round;
  step.stale = 0;
  if (step.cancelled && step.round < step.rounds) {
    seeker_.stop(now);
    add_note(step.report.note, "cancelled");
    return end_step(now);
  }
  if (step.round >= step.rounds) return end_step(now);
  begin_seeking(now);
}

// Returns why the averaging step is not exact, with the names of absent peers: those that the rounds of this peer lacked, and
// those of the layout that are gone, because the groups of other lines lacked them. Returns an empty text if no peer was absent
// and the grid itself is not exact; another note says that once.
std::string MoshpitPeer::inexact_note(const std::vector<RoundSummary>& rounds, bool held_back) const {
  auto absent = step_->absent;
  for (const auto& peer : step_->layout.peers) {
    if (keeper_.gone(peer)) add_absent(absent, {peer, name(keeper_.roster().find(peer)->status)});
  }
  std::string names;
  for (size_t i = 0; i < std::min(absent.size(), names_max); ++i) names += (i == 0 ? "" : ", ") + label_of(absent[i]);
  if (absent.size() > names_max) names += concat(" and ", absent.size() - names_max, " more");
  if (!names.empty()) return "not exact; absent: " + names;
  if (!can_be_exact(step_->layout)) return {};
  if (held_back) return "not exact: this peer is new, and its values do not count yet";
  return "not exact: " + inexact_reason(*step_, rounds);
}

void MoshpitPeer::end_step(Nanos now) {
  auto& step = *step_;
  FinishedStep done{.report = std::move(step.report)};
  auto& report = done.report;
  report.step = step.number;
  report.layout = step.layout.version;
  report.dims = step.layout.dims;
  report.peers = static_cast<uint32_t>(keeper_.roster().present().size());
  report.seconds = seconds_of(now - step.began);
  const bool alone = step.layout.version != 0 && step.rounds == 0;
  // If this is true, this peer is a newcomer and its values did not count, so the result lacks them.
  const bool held_back = step.input.weight > 0 && std::ranges::find(newcomer_, true) != newcomer_.end();
  if (step.layout.version != 0 && !can_be_exact(step.layout) && !std::exchange(reported_inexact_, true))
    add_note(report.note, inexact_text(step.layout));
  report.exact =
      alone || (!held_back && can_be_exact(step.layout) && step.round > 0 && step.round >= step.layout.dims.size() &&
                std::ranges::all_of(report.rounds, [](const RoundSummary& round) { return round.outcome == "averaged"; }) &&
                std::ranges::all_of(step.states, [](const ChunkState& state) { return state.full; }));
  if (!report.exact && !step.cancelled && step.layout.version != 0)
    add_note(report.note, inexact_note(report.rounds, held_back));
  done.replaced.assign(step.states.size(), false);
  for (size_t chunk = 0; chunk < step.states.size(); ++chunk) {
    const bool contributed_nothing = newcomer_[chunk] || step.input.weight == 0;
    done.replaced[chunk] = contributed_nothing && step.states[chunk].weight > 0;
    if (done.replaced[chunk]) newcomer_[chunk] = false;
  }
  if (step.layout.version != 0) {
    next_step_ = step.number + 1;
    ++steps_done_;
    exact_averaging_steps_ += report.exact ? 1 : 0;
    if (const auto advice = advice_.after(report.peers, report.dims, step.members_expected, step.members_absent);
        !advice.empty())
      add_note(report.note, advice);
    state_.keep(static_cast<int64_t>(step.number), step.values, keeper_, now);
  }
  done.contributed = std::move(step.input.values);
  done.values = std::move(step.values);
  finished_ = std::move(done);
  step_.reset();
}

}  // namespace unisono

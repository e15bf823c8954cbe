// An averaging step of a peer: it chooses number and layout, goes through the rounds, and writes the report.
#include "elastic/peer/averaging_step.h"

#include <algorithm>
#include <utility>

#include "elastic/formation/line_slot.h"
#include "elastic/peer/moshpit_group.h"
#include "elastic/peer/moshpit_peer.h"

namespace unisono {

namespace {

constexpr uint32_t stale_max = 8;  // limit of layouts that replace each other within one round; more indicate a fault

void add_note(std::string& note, const std::string& text) {
  if (note.find(text) == std::string::npos) note += (note.empty() ? "" : "; ") + text;
}

std::string inexact_text(const Layout& layout) {
  std::string size;
  for (const auto axis : layout.dims) size += (size.empty() ? "" : "x") + std::to_string(axis);
  return "the grid " + std::string(layout.grid == GridKind::published ? "published" : "chunk_keys") +
         " is exact only if full: " + std::to_string(layout.peers.size()) + " peers are not as many as " + size;
}

}  // namespace

Status MoshpitPeer::begin_step(StepInput input, Nanos now) {
  if (left_ || leave_by_ != never) return {Code::unavailable, "SHUTTING_DOWN: this peer is leaving the run"};
  if (step_ != nullptr || finished_) return {Code::invalid, "another averaging step is under way at this peer"};
  if (!joined()) return {Code::unavailable, "this peer has not joined the run yet"};
  if (auto status = check_step_weight(input.weight); !status.ok()) return status;
  const auto expected = settings_.role == ElasticRole::reducer ? 0 : settings_.elements;
  if (input.values.size() != expected * sizeof(float))
    return {Code::invalid, std::to_string(input.values.size() / sizeof(float)) +
                               " values were given for an averaging step over " + std::to_string(expected)};
  step_ = std::make_unique<MoshpitAveraging>();
  if (settings_.role != ElasticRole::reducer) step_->values = ChunkValues(table_, input.values);
  if (!input.keep_contributed) input.values = {};
  step_->input = std::move(input);
  if (settings_.role != ElasticRole::reducer) {
    step_->states.resize(table_.chunks());
    if (next_step_ == 0 && state_.newcomer()) newcomer_.assign(table_.chunks(), true);
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk)
      step_->states[chunk].weight = newcomer_[chunk] ? 0 : step_->input.weight;
  }
  const auto opened = keeper_.steps_opened();
  // A newcomer would be too late for the averaging step that others are in.
  step_->awaits_others = next_step_ == 0 && state_.newcomer();
  step_->number = std::max(next_step_, opened == 0 ? 0 : step_->awaits_others ? opened : opened - 1);
  step_->skipped_from = next_step_;
  step_->began = step_->phase_began = now;
  step_->choosing_patience = step_->awaits_others ? settings_.times.round_timeout
                                                  : std::max(settings_.times.gather_timeout, settings_.times.gossip_period * 4);
  act(now);
  return {};
}

void MoshpitPeer::cancel_step(Nanos now) {
  if (step_ == nullptr) return;
  step_->cancelled = true;
  act(now);
}

std::optional<FinishedStep> MoshpitPeer::take_step() { return std::exchange(finished_, std::nullopt); }

bool MoshpitPeer::act_step(Nanos now) {
  if (step_ == nullptr || step_->phase == MoshpitAveraging::Phase::averaging) return false;
  if (step_->cancelled) {
    seeker_.stop(now);  // the seeker may have pre-registered while this peer waited for others
    add_note(step_->report.note, "cancelled");
    end_step(now);
    return true;
  }
  if (step_->phase == MoshpitAveraging::Phase::choosing) return choose_layout(now);
  const auto outcome = seeker_.take_outcome();
  if (!outcome) return false;
  step_->gather_s += seconds_of(now - step_->phase_began);
  take_outcome(*outcome, now);
  return true;
}

// The layout in effect for the averaging step; null if it is not known yet.
const Layout* MoshpitPeer::layout_to_take(bool patience_over) {
  auto& step = *step_;
  const auto opened = keeper_.steps_opened();
  if (step.round == 0 && opened > 0) step.number = std::max(step.number, opened - 1);
  const auto* layout = keeper_.layout_for(step.number);
  const auto* newest = keeper_.newest_layout();
  if (layout != nullptr || newest == nullptr || !patience_over) return layout;
  // This process only knows a layout for later averaging steps. Peers that know the one before will open those soon; if none
  // does, this peer begins.
  step.number = newest->first_step;
  return newest;
}

void MoshpitPeer::take_layout(const Layout& layout) {
  auto& step = *step_;
  key_.enter(layout, settings_.self);
  if (step.layout.version == layout.version && step.layout.digest == layout.digest) return;
  if (step.layout.version != 0) {
    // The earlier rounds used other groups, so the result cannot be exact.
    for (auto& state : step.states) state.full = false;
  }
  step.layout = layout;
  step.rounds = settings_.rounds == 0 ? static_cast<uint32_t>(layout.dims.size()) : settings_.rounds;
}

// True if anything happened.
bool MoshpitPeer::choose_layout(Nanos now) {
  auto& step = *step_;
  const bool patience_over = now >= step.choosing_until();
  const auto* layout = layout_to_take(patience_over);
  if (layout == nullptr && !patience_over) return false;
  if (layout == nullptr) {
    add_note(step.report.note, "there is no layout yet: fewer peers than min_peers are there");
    end_step(now);
    return true;
  }
  take_layout(*layout);
  if (step.layout.peers.size() == 1 && step.layout.peers.front() == settings_.self && keeper_.roster().present().size() <= 1) {
    step.rounds = 0;
    end_step(now);
    return true;
  }
  if (step.awaits_others && keeper_.steps_opened() <= step.number) {
    if (!patience_over) {
      skip_steps();
      seeker_.pre_register(request_for(0), now);
      return false;
    }
    step.awaits_others = false;
    seeker_.stop(now);
  }
  skip_steps();
  keeper_.set_registered(step.number, now);
  begin_seeking(now);
  return true;
}

// Withdraws from averaging steps that this peer leaves out, so that other peers need not wait for it there, now or later.
void MoshpitPeer::skip_steps() {
  constexpr uint64_t open_at_most = 2;  // averaging steps that some peers may still be in
  auto& step = *step_;
  const auto first = std::max(step.skipped_from, step.number < open_at_most ? 0 : step.number - open_at_most);
  for (uint64_t number = first; number < step.number; ++number) {
    const auto* layout = keeper_.layout_for(number);
    // With keys no peer is waited for by name.
    if (layout == nullptr || key_count(*layout) > 0 || std::ranges::find(layout->peers, settings_.self) == layout->peers.end())
      continue;
    const auto rounds = settings_.rounds == 0 ? static_cast<uint32_t>(layout->dims.size()) : settings_.rounds;
    for (uint32_t round = 0; round < rounds; ++round) seeker_.skip(slot_in(*layout, settings_.self, number, round));
  }
  step.skipped_from = step.number;
}

SeekRequest MoshpitPeer::request_for(uint32_t round) const {
  auto request = seek_request(step_->layout, settings_.self, step_->number, round);
  if (key_.held()) request.cell = request.slot.line = key_.index();
  request.weighted = std::ranges::any_of(step_->states, [](const ChunkState& state) { return state.weight > 0; });
  request.bandwidth = keeper_.self_entry().facts.bandwidth;
  request.role = settings_.role;
  request.schema = settings_.schema;
  if (const auto found = missing_.find(round); found != missing_.end()) request.missing = found->second;
  return request;
}

void MoshpitPeer::begin_seeking(Nanos now) {
  step_->phase = MoshpitAveraging::Phase::seeking;
  step_->phase_began = now;
  seeker_.seek(request_for(step_->round), now);
}

void MoshpitPeer::take_outcome(const SeekOutcome& outcome, Nanos now) {
  auto& step = *step_;
  if (const auto* group = std::get_if<GroupDescriptor>(&outcome)) {
    missing_[step.round] = group->missing;
    // The key moves whatever the averaging comes to. A reducer has no values to mix, and no slot.
    if (settings_.role != ElasticRole::reducer) key_.move(group->members[group->rank_of(settings_.self)].position);
    step.phase = MoshpitAveraging::Phase::averaging;
    // If no member has weight, all came late to a run whose earlier members are gone: their values count from now on.
    if (std::ranges::none_of(group->members, [](const GroupMember& member) { return member.weighted; }))
      newcomer_.assign(table_.chunks(), false);
    if (!begin_round(*group, now)) return pass_round("void", now);
    if (step.round + 1 < step.rounds && !step.cancelled) seeker_.pre_register(request_for(step.round + 1), now);
  } else if (const auto* alone = std::get_if<SeekAlone>(&outcome)) {
    missing_[step.round] = alone->missing;
    if (alone->no_reducer) add_note(step.report.note, "NO_REDUCER: no member of the group can own chunks");
    pass_round("alone", now);
  } else if (const auto* closed = std::get_if<SeekClosed>(&outcome)) {
    take_outcome(*closed, now);
  } else if (const auto* full = std::get_if<SeekFull>(&outcome)) {
    if (full->other_schema) add_note(step.report.note, "SCHEMA_MISMATCH: the group averages tensors of another schema");
    pass_round("full", now);
  } else if (const auto* none = std::get_if<SeekNoCoordinator>(&outcome)) {
    add_note(step.report.note, none->text);
    pass_round("no coordinator", now);
  } else {
    take_outcome(std::get<SeekStale>(outcome), now);
  }
}

// The group was formed without this peer. If that was the first round, the peer moves to the next averaging step, which can
// then be complete. It does not open that one, because peers that are still in this averaging step, or have not begun it, would
// then be late in turn.
void MoshpitPeer::take_outcome(const SeekClosed&, Nanos now) {
  auto& step = *step_;
  const auto opened = keeper_.steps_opened();  // includes what the coordinator said
  if (step.round > 0 || step.awaits_others) return pass_round("closed", now);
  step.awaits_others = true;
  step.number = std::max(step.number + 1, opened == 0 ? 0 : opened - 1);
  step.phase = MoshpitAveraging::Phase::choosing;
  step.phase_began = now;
  step.choosing_patience = settings_.times.round_timeout;
}

void MoshpitPeer::take_outcome(const SeekStale& stale, Nanos now) {
  auto& step = *step_;
  if (++step.stale > stale_max) return pass_round("no coordinator", now);
  (void)keeper_.adopt_layout(stale.newer, now);
  step.phase = MoshpitAveraging::Phase::choosing;
  step.phase_began = now;
}

// Ends a round in which this peer found no group. Its values and weights do not change. The statistics count the round as a
// group of two members, one of them absent.
void MoshpitPeer::pass_round(const char* outcome, Nanos now) {
  step_->members_expected += 2;
  ++step_->members_absent;
  for (auto& state : step_->states) state.full = false;
  end_round({.round = step_->round, .outcome = outcome}, now);
}

void MoshpitPeer::end_round(RoundSummary summary, Nanos now) {
  if (step_ == nullptr) return;
  auto& step = *step_;
  summary.gather_s = std::exchange(step.gather_s, 0);
  step.report.rounds.push_back(std::move(summary));
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
  // The values that a newcomer wanted to contribute are not in the result.
  const bool held_back = step.input.weight > 0 && std::ranges::find(newcomer_, true) != newcomer_.end();
  if (step.layout.version != 0 && !can_be_exact(step.layout) && !std::exchange(reported_inexact_, true))
    add_note(report.note, inexact_text(step.layout));
  report.exact =
      alone || (!held_back && can_be_exact(step.layout) && step.round > 0 && step.round >= step.layout.dims.size() &&
                std::ranges::all_of(report.rounds, [](const RoundSummary& round) { return round.outcome == "averaged"; }) &&
                std::ranges::all_of(step.states, [](const ChunkState& state) { return state.full; }));
  done.replaced.assign(step.states.size(), false);
  for (size_t chunk = 0; chunk < step.states.size(); ++chunk) {
    const bool gave_nothing = newcomer_[chunk] || step.input.weight == 0;
    done.replaced[chunk] = gave_nothing && step.states[chunk].weight > 0;
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

// A peer's averaging step: the peer chooses the number and the layout of the step, and goes through its rounds.
// averaging_step_end.cc ends rounds and steps, and writes the report.
#include "elastic/peer/averaging_step.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "elastic/formation/line_slot.h"
#include "elastic/peer/moshpit_group.h"
#include "elastic/peer/moshpit_peer.h"

namespace unisono {

namespace {

// Coordinators may send at most this many newer layouts within one round. If they send more, something is wrong.
constexpr uint32_t stale_max = 8;

}  // namespace

Status MoshpitPeer::begin_step(StepInput input, Nanos now) {
  if (left_ || leave_by_ != never) return {Code::unavailable, "SHUTTING_DOWN: this peer is leaving the run"};
  if (step_ != nullptr || finished_) return {Code::invalid, "another averaging step is under way at this peer"};
  if (!joined()) return {Code::unavailable, "this peer has not joined the run yet"};
  if (auto status = check_step_weight(input.weight); !status.ok()) return status;
  const auto expected = settings_.role == ElasticRole::reducer ? 0 : settings_.elements;
  if (input.values.size() != expected * sizeof(float))
    return {Code::invalid,
            concat(input.values.size() / sizeof(float), " values were given for an averaging step over ", expected)};
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
  // Other peers have already begun the opened averaging step, so a newcomer would come too late for it. It waits for the next
  // step.
  step_->awaits_others = next_step_ == 0 && state_.newcomer();
  step_->number = std::max(next_step_, opened == 0 ? 0 : step_->awaits_others ? opened : opened - 1);
  step_->skipped_from = next_step_;
  step_->began = step_->phase_began = now;
  step_->choosing_timeout = step_->awaits_others ? settings_.times.round_timeout
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
    // While this peer waited for another peer to open the averaging step, the seeker may have pre-registered. Withdraw this.
    seeker_.stop(now);
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

// Returns the layout that is valid for the averaging step, or null if this process knows none. In the second case, if
// `timed_out` is true, goes on to the first averaging step of the newest layout, and returns this layout.
const Layout* MoshpitPeer::layout_to_take(bool timed_out) {
  auto& step = *step_;
  const auto opened = keeper_.steps_opened();
  if (step.round == 0 && opened > 0) step.number = std::max(step.number, opened - 1);
  const auto* layout = keeper_.layout_for(step.number);
  const auto* newest = keeper_.newest_layout();
  if (layout != nullptr || newest == nullptr || !timed_out) return layout;
  // The newest layout begins at a later averaging step. This peer has waited for peers with the previous layout to open that
  // step, and now opens the step itself.
  step.number = newest->first_step;
  return newest;
}

void MoshpitPeer::take_layout(const Layout& layout) {
  auto& step = *step_;
  key_.enter(layout, settings_.self);
  if (step.layout.version == layout.version && step.layout.digest == layout.digest) return;
  if (step.layout.version != 0) {
    // The earlier rounds used the groups of another layout, so the result cannot be exact.
    step.relaid = true;
    for (auto& state : step.states) state.full = false;
  }
  step.layout = layout;
  step.rounds = settings_.rounds == 0 ? static_cast<uint32_t>(layout.dims.size()) : settings_.rounds;
}

// Chooses a layout for the averaging step, and begins the first round. Returns true if anything happened.
bool MoshpitPeer::choose_layout(Nanos now) {
  auto& step = *step_;
  const bool timed_out = now >= step.choosing_until();
  const auto* layout = layout_to_take(timed_out);
  if (layout == nullptr && !timed_out) return false;
  if (layout == nullptr) {
    add_note(step.report.note, "there is no layout yet: fewer than min_peers peers have joined");
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
    if (!timed_out) {
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

// Withdraws from the averaging steps that this peer skips, so that other peers do not wait for it there.
void MoshpitPeer::skip_steps() {
  // Other peers may still work on this many averaging steps before the present one.
  constexpr uint64_t open_at_most = 2;
  auto& step = *step_;
  const auto first = std::max(step.skipped_from, step.number < open_at_most ? 0 : step.number - open_at_most);
  for (uint64_t number = first; number < step.number; ++number) {
    const auto* layout = keeper_.layout_for(number);
    // Coordinators wait for this peer only if the layout lists it, and only if the layout has no keys.
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
    // The key changes now, even if the averaging fails later. A reducer has no values to mix, so no slot was drawn for it.
    if (settings_.role != ElasticRole::reducer) key_.move(group->members[group->rank_of(settings_.self)].position);
    step.phase = MoshpitAveraging::Phase::averaging;
    // No member has weight. This means that all members are newcomers, and that the earlier members of the run are gone. From
    // now on the newcomers' values count.
    if (std::ranges::none_of(group->members, [](const GroupMember& member) { return member.weighted; }))
      newcomer_.assign(table_.chunks(), false);
    if (!begin_round(*group, now)) return skip_round("void", now);
    if (step.round + 1 < step.rounds && !step.cancelled) seeker_.pre_register(request_for(step.round + 1), now);
  } else if (const auto* alone = std::get_if<SeekAlone>(&outcome)) {
    take_outcome(*alone, now);
  } else if (const auto* closed = std::get_if<SeekClosed>(&outcome)) {
    take_outcome(*closed, now);
  } else if (const auto* full = std::get_if<SeekFull>(&outcome)) {
    if (full->other_schema) add_note(step.report.note, "SCHEMA_MISMATCH: the group averages tensors of another schema");
    skip_round("full", now);
  } else if (const auto* none = std::get_if<SeekNoCoordinator>(&outcome)) {
    add_note(step.report.note, none->text);
    skip_round("no coordinator", now);
  } else {
    take_outcome(std::get<SeekStale>(outcome), now);
  }
}

void MoshpitPeer::take_outcome(const SeekAlone& alone, Nanos now) {
  auto& step = *step_;
  missing_[step.round] = alone.missing;
  if (alone.no_reducer) {
    add_note(step.report.note, "NO_REDUCER: no member of the group can own chunks");
    return skip_round("alone", now);
  }
  skip_round("alone", absent_from_line(request_for(step.round).slot, {settings_.self}, alone.missing), now);
}

// The group was formed without this peer. In round 0, the peer goes on to the next averaging step, because the groups of that
// step can still become complete. The peer waits until another peer opens that step. If it opened the step itself, peers that
// are still in earlier steps would come too late.
void MoshpitPeer::take_outcome(const SeekClosed&, Nanos now) {
  auto& step = *step_;
  // This is at least the number that the coordinator has answered, because the peer has noted that number before.
  const auto opened = keeper_.steps_opened();
  if (step.round > 0 || step.awaits_others) return skip_round("closed", now);
  step.awaits_others = true;
  step.number = std::max(step.number + 1, opened == 0 ? 0 : opened - 1);
  step.phase = MoshpitAveraging::Phase::choosing;
  step.phase_began = now;
  step.choosing_timeout = settings_.times.round_timeout;
}

void MoshpitPeer::take_outcome(const SeekStale& stale, Nanos now) {
  auto& step = *step_;
  if (++step.stale > stale_max) return skip_round("no coordinator", now);
  (void)keeper_.adopt_layout(stale.newer, now);
  step.phase = MoshpitAveraging::Phase::choosing;
  step.phase_began = now;
}

}  // namespace unisono

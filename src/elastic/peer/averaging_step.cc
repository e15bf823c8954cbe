// A sweep of a peer, from the choice of its number and layout through its rounds to its report.
#include "elastic/peer/averaging_step.h"

#include <algorithm>
#include <utility>

#include "elastic/formation/line_slot.h"
#include "elastic/peer/moshpit_group.h"
#include "elastic/peer/moshpit_peer.h"

namespace unisono {

namespace {

constexpr uint32_t stale_max = 8;  // layouts that replace each other within one round: more is a fault

void add_note(std::string& note, const std::string& text) {
  if (note.find(text) == std::string::npos) note += (note.empty() ? "" : "; ") + text;
}

std::string inexact_text(const Layout& layout) {
  std::string size;
  for (const auto axis : layout.dims) size += (size.empty() ? "" : "x") + std::to_string(axis);
  return "the grid " + std::string(layout.grid == GridKind::published ? "published" : "chunk_keys") + " is exact only if full: " +
         std::to_string(layout.peers.size()) + " peers are not as many as " + size;
}

}  // namespace

Status MoshpitPeer::begin_sweep(SweepInput input, Nanos now) {
  if (left_ || leave_by_ != never) return {Code::unavailable, "SHUTTING_DOWN: this peer is leaving the run"};
  if (sweep_ != nullptr || finished_) return {Code::invalid, "another sweep is under way at this peer"};
  if (!joined()) return {Code::unavailable, "this peer has not joined the run yet"};
  if (auto status = check_sweep_weight(input.weight); !status.ok()) return status;
  const auto expected = settings_.role == ElasticRole::reducer ? 0 : settings_.elements;
  if (input.values.size() != expected * sizeof(float)) return {Code::invalid, std::to_string(input.values.size() / sizeof(float)) + " values were given for a sweep over " + std::to_string(expected)};
  sweep_ = std::make_unique<MoshpitSweep>();
  if (settings_.role != ElasticRole::reducer) sweep_->values = ChunkValues(table_, input.values);
  if (!input.keep_contributed) input.values = {};
  sweep_->input = std::move(input);
  if (settings_.role != ElasticRole::reducer) {
    sweep_->states.resize(table_.chunks());
    if (next_sweep_ == 0 && state_.newcomer()) newcomer_.assign(table_.chunks(), true);
    for (uint32_t chunk = 0; chunk < table_.chunks(); ++chunk) sweep_->states[chunk].weight = newcomer_[chunk] ? 0 : sweep_->input.weight;
  }
  const auto opened = keeper_.sweeps_opened();
  // Who has just come would be too late for the sweep that others are in.
  sweep_->awaits_others = next_sweep_ == 0 && state_.newcomer();
  sweep_->number = std::max(next_sweep_, opened == 0 ? 0 : sweep_->awaits_others ? opened : opened - 1);
  sweep_->skipped_from = next_sweep_;
  sweep_->began = sweep_->phase_began = now;
  sweep_->choosing_patience = sweep_->awaits_others ? settings_.times.round_timeout : std::max(settings_.times.gather_timeout, settings_.times.gossip_period * 4);
  act(now);
  return {};
}

void MoshpitPeer::cancel_sweep(Nanos now) {
  if (sweep_ == nullptr) return;
  sweep_->cancelled = true;
  act(now);
}

std::optional<FinishedSweep> MoshpitPeer::take_sweep() { return std::exchange(finished_, std::nullopt); }

bool MoshpitPeer::act_sweep(Nanos now) {
  if (sweep_ == nullptr || sweep_->phase == MoshpitSweep::Phase::averaging) return false;
  if (sweep_->cancelled) {
    seeker_.stop(now);  // it may have announced itself while it waited for others
    add_note(sweep_->report.note, "cancelled");
    end_sweep(now);
    return true;
  }
  if (sweep_->phase == MoshpitSweep::Phase::choosing) return choose_layout(now);
  const auto outcome = seeker_.take_outcome();
  if (!outcome) return false;
  sweep_->gather_s += seconds_of(now - sweep_->phase_began);
  take_outcome(*outcome, now);
  return true;
}

// The layout in effect for the sweep; null: not known yet.
const Layout* MoshpitPeer::layout_to_take(bool patience_over) {
  auto& sweep = *sweep_;
  const auto opened = keeper_.sweeps_opened();
  if (sweep.round == 0 && opened > 0) sweep.number = std::max(sweep.number, opened - 1);
  const auto* layout = keeper_.layout_for(sweep.number);
  const auto* newest = keeper_.newest_layout();
  if (layout != nullptr || newest == nullptr || !patience_over) return layout;
  // Only a layout for later sweeps is known here: who knows the one before it opens them soon. If nobody does, this peer begins.
  sweep.number = newest->first_sweep;
  return newest;
}

void MoshpitPeer::take_layout(const Layout& layout) {
  auto& sweep = *sweep_;
  key_.enter(layout, settings_.self);
  if (sweep.layout.version == layout.version && sweep.layout.digest == layout.digest) return;
  if (sweep.layout.version != 0) {
    // Its groups are others than those that the rounds so far were made in.
    for (auto& state : sweep.states) state.full = false;
  }
  sweep.layout = layout;
  sweep.rounds = settings_.rounds == 0 ? static_cast<uint32_t>(layout.dims.size()) : settings_.rounds;
}

// True if anything happened.
bool MoshpitPeer::choose_layout(Nanos now) {
  auto& sweep = *sweep_;
  const bool patience_over = now >= sweep.choosing_until();
  const auto* layout = layout_to_take(patience_over);
  if (layout == nullptr && !patience_over) return false;
  if (layout == nullptr) {
    add_note(sweep.report.note, "there is no layout yet: fewer peers than min_peers are there");
    end_sweep(now);
    return true;
  }
  take_layout(*layout);
  if (sweep.layout.peers.size() == 1 && sweep.layout.peers.front() == settings_.self && keeper_.roster().present().size() <= 1) {
    sweep.rounds = 0;
    end_sweep(now);
    return true;
  }
  if (sweep.awaits_others && keeper_.sweeps_opened() <= sweep.number) {
    if (!patience_over) {
      skip_sweeps();
      seeker_.pre_register(request_for(0), now);
      return false;
    }
    sweep.awaits_others = false;
    seeker_.stop(now);
  }
  skip_sweeps();
  keeper_.set_registered(sweep.number, now);
  begin_seeking(now);
  return true;
}

// Others need not wait for this peer in a sweep that it leaves out, be it that they have begun it or will.
void MoshpitPeer::skip_sweeps() {
  constexpr uint64_t open_at_most = 2;  // sweeps that some peers may still be in
  auto& sweep = *sweep_;
  const auto first = std::max(sweep.skipped_from, sweep.number < open_at_most ? 0 : sweep.number - open_at_most);
  for (uint64_t number = first; number < sweep.number; ++number) {
    const auto* layout = keeper_.layout_for(number);
    // With keys nobody is waited for by name.
    if (layout == nullptr || key_count(*layout) > 0 || std::ranges::find(layout->peers, settings_.self) == layout->peers.end()) continue;
    const auto rounds = settings_.rounds == 0 ? static_cast<uint32_t>(layout->dims.size()) : settings_.rounds;
    for (uint32_t round = 0; round < rounds; ++round) seeker_.skip(seat_in(*layout, settings_.self, number, round));
  }
  sweep.skipped_from = sweep.number;
}

SeekRequest MoshpitPeer::request_for(uint32_t round) const {
  auto request = seek_request(sweep_->layout, settings_.self, sweep_->number, round);
  if (key_.held()) request.cell = request.seat.line = key_.index();
  request.weighted = std::ranges::any_of(sweep_->states, [](const ChunkState& state) { return state.weight > 0; });
  request.bandwidth = keeper_.self_entry().facts.bandwidth;
  request.role = settings_.role;
  request.schema = settings_.schema;
  if (const auto found = missing_.find(round); found != missing_.end()) request.missing = found->second;
  return request;
}

void MoshpitPeer::begin_seeking(Nanos now) {
  sweep_->phase = MoshpitSweep::Phase::seeking;
  sweep_->phase_began = now;
  seeker_.seek(request_for(sweep_->round), now);
}

void MoshpitPeer::take_outcome(const SeekOutcome& outcome, Nanos now) {
  auto& sweep = *sweep_;
  if (const auto* group = std::get_if<GroupDescriptor>(&outcome)) {
    missing_[sweep.round] = group->missing;
    // Whatever becomes of the averaging. A reducer has nothing to mix, and no slot.
    if (settings_.role != ElasticRole::reducer) key_.move(group->members[group->rank_of(settings_.self)].position);
    sweep.phase = MoshpitSweep::Phase::averaging;
    // Where nobody has any weight all came late to a run whose members are gone: their values count from now on.
    if (std::ranges::none_of(group->members, [](const GroupMember& member) { return member.weighted; })) newcomer_.assign(table_.chunks(), false);
    if (!begin_round(*group, now)) return pass_round("void", now);
    if (sweep.round + 1 < sweep.rounds && !sweep.cancelled) seeker_.pre_register(request_for(sweep.round + 1), now);
  } else if (const auto* alone = std::get_if<SeekAlone>(&outcome)) {
    missing_[sweep.round] = alone->missing;
    if (alone->no_reducer) add_note(sweep.report.note, "NO_REDUCER: nobody in the group could own chunks");
    pass_round("alone", now);
  } else if (const auto* closed = std::get_if<SeekClosed>(&outcome)) {
    take_outcome(*closed, now);
  } else if (const auto* full = std::get_if<SeekFull>(&outcome)) {
    if (full->other_schema) add_note(sweep.report.note, "SCHEMA_MISMATCH: the group averages something else");
    pass_round("full", now);
  } else if (const auto* none = std::get_if<SeekNoClerk>(&outcome)) {
    add_note(sweep.report.note, none->text);
    pass_round("no clerk", now);
  } else {
    take_outcome(std::get<SeekStale>(outcome), now);
  }
}

// The group was formed without this peer. From the first round it goes on to the next sweep, which it can make whole; but it does not open that one, or
// those who are still in this sweep, or have not begun it, would be too late in their turn.
void MoshpitPeer::take_outcome(const SeekClosed&, Nanos now) {
  auto& sweep = *sweep_;
  const auto opened = keeper_.sweeps_opened();  // with what the clerk said
  if (sweep.round > 0 || sweep.awaits_others) return pass_round("closed", now);
  sweep.awaits_others = true;
  sweep.number = std::max(sweep.number + 1, opened == 0 ? 0 : opened - 1);
  sweep.phase = MoshpitSweep::Phase::choosing;
  sweep.phase_began = now;
  sweep.choosing_patience = settings_.times.round_timeout;
}

void MoshpitPeer::take_outcome(const SeekStale& stale, Nanos now) {
  auto& sweep = *sweep_;
  if (++sweep.stale > stale_max) return pass_round("no clerk", now);
  (void)keeper_.adopt_layout(stale.newer, now);
  sweep.phase = MoshpitSweep::Phase::choosing;
  sweep.phase_began = now;
}

// A round without a group: values and weights stay as they are. One of two was absent, this peer itself or the other.
void MoshpitPeer::pass_round(const char* outcome, Nanos now) {
  sweep_->members_expected += 2;
  ++sweep_->members_absent;
  for (auto& state : sweep_->states) state.full = false;
  end_round({.round = sweep_->round, .outcome = outcome}, now);
}

void MoshpitPeer::end_round(RoundSummary summary, Nanos now) {
  if (sweep_ == nullptr) return;
  auto& sweep = *sweep_;
  summary.gather_s = std::exchange(sweep.gather_s, 0);
  sweep.report.rounds.push_back(std::move(summary));
  ++sweep.round;
  sweep.stale = 0;
  if (sweep.cancelled && sweep.round < sweep.rounds) {
    seeker_.stop(now);
    add_note(sweep.report.note, "cancelled");
    return end_sweep(now);
  }
  if (sweep.round >= sweep.rounds) return end_sweep(now);
  begin_seeking(now);
}

void MoshpitPeer::end_sweep(Nanos now) {
  auto& sweep = *sweep_;
  FinishedSweep done{.report = std::move(sweep.report)};
  auto& report = done.report;
  report.sweep = sweep.number;
  report.layout = sweep.layout.version;
  report.dims = sweep.layout.dims;
  report.peers = static_cast<uint32_t>(keeper_.roster().present().size());
  report.seconds = seconds_of(now - sweep.began);
  const bool alone = sweep.layout.version != 0 && sweep.rounds == 0;
  // What a newcomer wanted to give is not in.
  const bool held_back = sweep.input.weight > 0 && std::ranges::find(newcomer_, true) != newcomer_.end();
  if (sweep.layout.version != 0 && !can_be_exact(sweep.layout) && !std::exchange(told_inexact_, true)) add_note(report.note, inexact_text(sweep.layout));
  report.exact = alone || (!held_back && can_be_exact(sweep.layout) && sweep.round > 0 && sweep.round >= sweep.layout.dims.size() &&
                           std::ranges::all_of(report.rounds, [](const RoundSummary& round) { return round.outcome == "averaged"; }) &&
                           std::ranges::all_of(sweep.states, [](const ChunkState& state) { return state.full; }));
  done.replaced.assign(sweep.states.size(), false);
  for (size_t chunk = 0; chunk < sweep.states.size(); ++chunk) {
    const bool gave_nothing = newcomer_[chunk] || sweep.input.weight == 0;
    done.replaced[chunk] = gave_nothing && sweep.states[chunk].weight > 0;
    if (done.replaced[chunk]) newcomer_[chunk] = false;
  }
  if (sweep.layout.version != 0) {
    next_sweep_ = sweep.number + 1;
    ++sweeps_done_;
    exact_sweeps_ += report.exact ? 1 : 0;
    if (const auto advice = advice_.after(report.peers, report.dims, sweep.members_expected, sweep.members_absent); !advice.empty()) add_note(report.note, advice);
    state_.keep(static_cast<int64_t>(sweep.number), sweep.values, keeper_, now);
  }
  done.contributed = std::move(sweep.input.values);
  done.values = std::move(sweep.values);
  finished_ = std::move(done);
  sweep_.reset();
}

}  // namespace unisono

#include "elastic/state/state_loader.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono {

namespace {

constexpr uint32_t strikes_max = 3;

}  // namespace

StateLoader::StateLoader(const StateLoaderOptions& options, std::vector<StateSource> donors, Nanos now)
    : options_(options),
      assembly_(options.schema, options.chunk_bytes),
      random_(mix64(options.self.low)),
      began_(now),
      last_message_at_(now),
      last_progress_at_(now) {
  donors_changed(std::move(donors), now);
}

// The list of donors, their slots, and donors that misbehave.

void StateLoader::donors_changed(std::vector<StateSource> donors, Nanos now) {
  if (ended_) return;
  std::map<PeerId, StateSource> listed;
  for (const auto& source : donors) {
    if (source.id != options_.self) listed[source.id] = source;
  }
  for (auto& [id, donor] : donors_) {
    if (!listed.contains(id)) cancel_requests(donor);
  }
  std::erase_if(donors_, [&](const auto& entry) { return !listed.contains(entry.first); });
  for (const auto& [id, source] : listed) {
    auto& donor = donors_[id];
    donor.listed_step = source.step;
    if (donor.listed == source.state) continue;
    donor.listed = source.state;
    const bool talking = donor.stage == Stage::asked || donor.stage == Stage::offered || donor.stage == Stage::serving;
    if (!talking) {
      donor.state = source.state;
      donor.denied = false;
    }
  }
  sort_donors();
  plan(now);
}

void StateLoader::sort_donors() {
  std::map<uint64_t, size_t> counts;
  for (const auto& [id, donor] : donors_) {
    if (donor.listed != 0 && donor.stage != Stage::useless) ++counts[donor.listed];
  }
  order_.clear();
  for (const auto& [id, donor] : donors_) order_.push_back(id);
  const auto order_key = [&](const PeerId& id) { return mix64(options_.self.low ^ id.low); };
  std::sort(order_.begin(), order_.end(),
            [&](const PeerId& a, const PeerId& b) { return std::pair(order_key(a), a) < std::pair(order_key(b), b); });
  most_common_state_ = 0;
  size_t most = 1;
  for (const auto& id : order_) {
    const auto found = counts.find(donors_[id].listed);
    if (found == counts.end() || found->second <= most) continue;
    most = found->second;
    most_common_state_ = found->first;
  }
  const auto first = std::ranges::find_if(order_, [&](const PeerId& id) {
    return most_common_state_ == 0 ? donors_[id].listed != 0 : donors_[id].listed == most_common_state_;
  });
  most_common_step_ = first == order_.end() ? -1 : donors_[*first].listed_step;
  std::stable_partition(order_.begin(), order_.end(),
                        [&](const PeerId& id) { return most_common_state_ != 0 && donors_[id].listed == most_common_state_; });
}

void StateLoader::peer_gone(const PeerId& peer, Nanos now) {
  const auto found = donors_.find(peer);
  if (ended_ || found == donors_.end() || found->second.stage == Stage::useless) return;
  rest(found->second, now + options_.times.stall_timeout, false);
  plan(now);
}

void StateLoader::rest(Donor& donor, Nanos again, bool busy) {
  cancel_requests(donor);
  donor.stage = Stage::resting;
  donor.again = again;
  donor.busy = busy;
  donor.offer = {};
}

// Ends all requests to this donor, so that the parts can be requested from other donors.
void StateLoader::cancel_requests(Donor& donor) {
  for (const auto part : donor.wanted) {
    if (part >= asked_of_.size()) continue;
    --asked_of_[part];
    first_open_ = std::min(first_open_, part);
  }
  donor.wanted.clear();
  donor.window = 2;
}

void StateLoader::strike(const PeerId& id, Donor& donor) {
  if (++donor.strikes < strikes_max) return;
  send(id, StateDone{});
  cancel_requests(donor);
  donor.stage = Stage::useless;
}

uint32_t StateLoader::active() const {
  return static_cast<uint32_t>(std::count_if(donors_.begin(), donors_.end(), [](const auto& entry) {
    return entry.second.stage == Stage::asked || entry.second.stage == Stage::offered || entry.second.stage == Stage::serving;
  }));
}

// Messages from donors.

Status StateLoader::message(const PeerId& from, const StateMessage& message, Nanos now) {
  if (for_donor(message)) {
    ++counters_.malformed;
    return {Code::corrupt, "state message: for a donor, not for a joiner"};
  }
  const auto found = donors_.find(from);
  if (ended_ || found == donors_.end() || found->second.stage == Stage::useless) {
    // This process does not use the sender as a donor, but the sender has given this process a slot. StateDone frees the slot.
    if (std::holds_alternative<StateOffer>(message)) send(from, StateDone{});
    return {};
  }
  auto& donor = found->second;
  Status status;
  if (const auto* offer = std::get_if<StateOffer>(&message)) status = on(from, donor, *offer, now);
  else if (const auto* busy = std::get_if<StateBusy>(&message)) on(donor, *busy, now);
  else if (const auto* refused = std::get_if<StateRefused>(&message)) on(donor, *refused, now);
  else if (const auto* part = std::get_if<StatePart>(&message)) status = on(from, donor, *part, now);
  else donor.received_at = last_message_at_ = now;
  if (!status.ok()) ++counters_.malformed;
  plan(now);
  return status;
}

Status StateLoader::on(const PeerId& from, Donor& donor, const StateOffer& offer, Nanos now) {
  if (auto status = assembly_.fits(offer.manifest); !status.ok()) {
    donor.strikes = strikes_max;
    strike(from, donor);
    return status;
  }
  if (donor.stage != Stage::asked) {
    if (donor.stage != Stage::serving && donor.stage != Stage::offered) send(from, StateDone{});
    return {};
  }
  last_message_at_ = donor.received_at = now;
  donor.state = digest(offer.manifest);
  if (!chosen_) {
    donor.stage = Stage::offered;
    donor.offer = offer.manifest;
  } else if (donor.state == assembly_.state()) {
    donor.stage = Stage::serving;
    donor.sent_at = now;
  } else {
    donor.stage = Stage::fresh;
    donor.denied = true;
    send(from, StateDone{});
  }
  return {};
}

void StateLoader::on(Donor& donor, const StateBusy& busy, Nanos now) {
  ++counters_.busy;
  if (donor.stage != Stage::asked && donor.stage != Stage::serving) return;
  last_message_at_ = now;
  // The wait is random, so that joiners do not all return at once. It has bounds, whatever the donor proposes.
  const auto stall = options_.times.stall_timeout;
  const auto wait = std::clamp<Nanos>(Nanos{busy.retry_after_ms} * millisecond, stall / 8, 2 * stall);
  rest(donor, now + wait * 3 / 4 + static_cast<Nanos>(random_.below(static_cast<uint64_t>(wait / 2))), true);
}

void StateLoader::on(Donor& donor, const StateRefused& refused, Nanos now) {
  ++counters_.refused;
  if (donor.stage == Stage::fresh || donor.stage == Stage::resting) return;
  rest(donor, now + options_.times.stall_timeout, false);
  if (refused.reason == StateRefusal::other_state) donor.denied = true;
  if (refused.reason == StateRefusal::other_schema || refused.reason == StateRefusal::leaving) donor.stage = Stage::useless;
}

Status StateLoader::on(const PeerId& from, Donor& donor, const StatePart& part, Nanos now) {
  // The part may belong to a state that is no longer being loaded.
  if (part.state != assembly_.state()) return {};
  if (part.part >= assembly_.part_count()) {
    strike(from, donor);
    return {Code::corrupt, concat("state message: part ", part.part, " of ", assembly_.part_count())};
  }
  last_message_at_ = donor.received_at = now;
  received_bytes_ += part.bytes.size();
  const auto added = assembly_.add(part.part, part.bytes);
  const auto forget = [&](Donor& one) {
    if (std::erase(one.wanted, part.part) > 0) --asked_of_[part.part];
  };
  if (added == StateAssembly::Added::damaged) {
    ++counters_.damaged;
    forget(donor);
    first_open_ = std::min(first_open_, part.part);
    strike(from, donor);
    return {Code::corrupt, concat("state message: part ", part.part, " is damaged")};
  }
  if (added == StateAssembly::Added::repeated) ++counters_.repeated;
  else last_progress_at_ = now;
  donor.sent_part = true;
  donor.window = std::min(donor.window + 1, state_window_max);
  for (auto& [id, one] : donors_) forget(one);
  return {};
}

// Timeouts.

void StateLoader::woke(Nanos now) {
  if (ended_) return;
  check_silence(now);
  plan(now);
}

void StateLoader::check_silence(Nanos now) {
  const auto stall = options_.times.stall_timeout;
  for (auto& [id, donor] : donors_) {
    const bool waiting = donor.stage == Stage::asked || (donor.stage == Stage::serving && !donor.wanted.empty());
    if (waiting && now >= donor.received_at + stall) {
      ++counters_.stalled;
      rest(donor, now + stall, false);
    } else if (donor.stage == Stage::serving && !donor.wanted.empty() && now >= donor.sent_at + stall / 4) {
      donor.sent_at = now;
      send(id, StateWant{assembly_.state(), {}});
    }
  }
}

Nanos StateLoader::next_deadline() const {
  if (ended_) return never;
  const auto stall = options_.times.stall_timeout;
  Nanos next = std::min(last_message_at_ + options_.no_answer_timeout, last_progress_at_ + options_.no_progress_timeout);
  if (no_donor_since_ != never) next = std::min(next, no_donor_since_ + options_.times.result_timeout);
  for (const auto& [id, donor] : donors_) {
    if (donor.stage == Stage::asked) next = std::min(next, donor.received_at + stall);
    if (donor.stage == Stage::offered) next = std::min(next, donor.received_at + stall / 4);
    if (donor.stage == Stage::serving && !donor.wanted.empty())
      next = std::min({next, donor.received_at + stall, donor.sent_at + stall / 4});
    if (donor.stage == Stage::resting && donor.again > planned_at_) next = std::min(next, donor.again);
  }
  return next;
}

void StateLoader::check_timeouts(Nanos now) {
  const bool anybody = std::any_of(donors_.begin(), donors_.end(), [](const auto& entry) {
    return entry.second.stage != Stage::useless && entry.second.state != 0;
  });
  if (anybody) no_donor_since_ = never;
  else if (no_donor_since_ == never) no_donor_since_ = now;
  if (no_donor_since_ != never && now >= no_donor_since_ + options_.times.result_timeout) return fail("no peer offers a state");
  if (now >= last_message_at_ + options_.no_answer_timeout) return fail("no donor answered in time");
  if (now >= last_progress_at_ + options_.no_progress_timeout) return fail("donors are busy and sent no part in time");
}

StateProgress StateLoader::progress() const {
  StateProgress progress;
  progress.parts = assembly_.parts_done();
  progress.parts_all = assembly_.part_count();
  progress.bytes = assembly_.bytes_done();
  progress.bytes_all = assembly_.state() == 0 ? 0 : assembly_.bytes_all();
  for (const auto& [id, donor] : donors_) progress.serving += donor.stage == Stage::serving ? 1 : 0;
  return progress;
}

void StateLoader::fail(const std::string& why) {
  const auto seconds = std::to_string((planned_at_ - began_) / second);
  ended_ = true;
  outcome_ = Result<LoadedState>(
      Status(Code::unavailable, concat("STATE_UNAVAILABLE: ", why, " (", donors_.size(), " peers known, ", seconds, " s; busy ",
                                       counters_.busy, " times, refused ", counters_.refused, ", silent ", counters_.stalled,
                                       "; ", assembly_.parts_done(), " of ", assembly_.part_count(), " parts loaded)")));
  for (const auto& [id, donor] : donors_) {
    if (donor.stage == Stage::asked || donor.stage == Stage::offered || donor.stage == Stage::serving) send(id, StateDone{});
  }
}

void StateLoader::finish() {
  ended_ = true;
  LoadedState state;
  state.step = assembly_.manifest().step;
  state.values = assembly_.take_values();
  state.blobs = assembly_.take_blobs();
  state.mixed = assembly_.mixed();
  state.bytes = received_bytes_;
  for (const auto& [id, donor] : donors_) {
    state.donors += donor.sent_part ? 1 : 0;
    if (donor.stage == Stage::asked || donor.stage == Stage::offered || donor.stage == Stage::serving) send(id, StateDone{});
  }
  outcome_ = Result<LoadedState>(std::move(state));
}

}  // namespace unisono

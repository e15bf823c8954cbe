// The plan of a StateLoader: which donors to ask, which state to load, and which part to request from which donor.
#include <algorithm>

#include "elastic/state/state_loader.h"

namespace unisono {
namespace {

// At most this many donors are asked although the roster lists another state for them. There is a limit, because such requests
// may all be useless: if every peer has other blobs, no two peers have the same state.
constexpr uint32_t speculative_asks_max = 16;

}  // namespace

void StateLoader::plan(Nanos now) {
  planned_at_ = now;
  if (ended_) return;
  if (chosen_ && assembly_.complete()) return finish();
  drop_state_without_donors();
  ask_donors(now);
  choose(now);
  if (chosen_ && assembly_.complete()) return finish();
  request_parts(now);
  check_timeouts(now);
}

// Returns true if the donor may still send parts of the chosen state.
bool StateLoader::waits_for(const Donor& donor) const {
  if (donor.stage == Stage::asked || donor.stage == Stage::serving) return true;
  if (donor.denied || donor.state != assembly_.state()) return false;
  return donor.stage == Stage::fresh || (donor.stage == Stage::resting && donor.busy);
}

// If no donor can send more parts of the chosen state, drops the choice.
void StateLoader::drop_state_without_donors() {
  if (!chosen_ || std::any_of(donors_.begin(), donors_.end(), [&](const auto& entry) { return waits_for(entry.second); }))
    return;
  chosen_ = false;
  ++counters_.switched;
  for (auto& [id, donor] : donors_) donor.denied = false;
}

void StateLoader::ask_donors(Nanos now) {
  if (chosen_) {
    // One more donor is useful only if there is a part that has neither arrived nor been requested.
    while (first_open_ < asked_of_.size() && (assembly_.has(first_open_) || asked_of_[first_open_] > 0)) ++first_open_;
    if (first_open_ >= asked_of_.size()) return;
  }
  for (uint32_t count = active(); count < options_.donors_at_once; ++count) {
    const auto id = next_to_ask(count, now);
    if (!id) return;
    auto& donor = donors_[*id];
    if (count > 0 && donor.state != (chosen_ ? assembly_.state() : most_common_state_)) ++speculative_asks_;
    donor.stage = Stage::asked;
    donor.received_at = now;
    send(*id, StateAsk{options_.schema, chosen_ ? assembly_.state() : 0});
  }
}

std::optional<PeerId> StateLoader::next_to_ask(uint32_t active, Nanos now) const {
  for (const auto& id : order_) {
    const auto& donor = donors_.at(id);
    const bool may = donor.stage == Stage::fresh || (donor.stage == Stage::resting && now >= donor.again);
    if (!may || donor.state == 0) continue;
    if (chosen_ ? donor.denied || !may_have(donor, assembly_.state(), assembly_.manifest().step)
                : active > 0 && !may_have(donor, most_common_state_, most_common_step_))
      continue;
    return id;
  }
  return std::nullopt;
}

// Returns true if the donor has the state, or may have it. If the roster lists the donor with another averaging step than
// `step`, its roster entry may be outdated, so it may have the state. At most speculative_asks_max donors are asked for this
// reason.
bool StateLoader::may_have(const Donor& donor, uint64_t state, int64_t step) const {
  if (state != 0 && donor.state == state) return true;
  return donor.state == donor.listed && donor.listed_step != step && speculative_asks_ < speculative_asks_max;
}

// Chooses the state that most of the asked donors offer. If parts were loaded for an earlier choice, they are kept.
void StateLoader::choose(Nanos now) {
  if (chosen_) return;
  std::map<uint64_t, size_t> offers;
  bool more_to_come = false;
  bool patient = true;
  for (const auto& [id, donor] : donors_) {
    more_to_come = more_to_come || donor.stage == Stage::asked;
    if (donor.stage != Stage::offered) continue;
    ++offers[donor.state];
    patient = patient && now < donor.received_at + options_.times.stall_timeout / 4;
  }
  if (offers.empty() || (more_to_come && patient)) return;
  const Donor* best = nullptr;
  for (const auto& id : order_) {
    const auto& donor = donors_[id];
    if (donor.stage == Stage::offered && (best == nullptr || offers[donor.state] > offers[best->state])) best = &donor;
  }
  for (auto& [id, donor] : donors_) cancel_requests(donor);
  assembly_.adopt(best->offer);
  chosen_ = true;
  asked_of_.assign(assembly_.part_count(), 0);
  first_open_ = 0;
  for (auto& [id, donor] : donors_) {
    if (donor.stage != Stage::offered) continue;
    donor.offer = {};
    donor.stage = donor.state == assembly_.state() ? Stage::serving : Stage::fresh;
    donor.sent_at = now;
    donor.denied = donor.stage == Stage::fresh;
    if (donor.denied) send(id, StateDone{});
  }
}

void StateLoader::request_parts(Nanos now) {
  if (!chosen_) return;
  for (const auto& id : order_) {
    auto& donor = donors_[id];
    if (donor.stage != Stage::serving) continue;
    StateWant want{assembly_.state(), {}};
    while (donor.wanted.size() < donor.window) {
      const auto part = next_part(donor);
      if (!part) break;
      // The donor had nothing to send until now, so its silence counts only from now on.
      if (donor.wanted.empty()) donor.received_at = now;
      ++asked_of_[*part];
      donor.wanted.push_back(*part);
      want.parts.push_back(*part);
    }
    if (!want.parts.empty()) {
      donor.sent_at = now;
      send(id, want);
    } else if (donor.wanted.empty()) {
      send(id, StateDone{});
      donor.stage = Stage::fresh;
    }
  }
}

std::optional<uint32_t> StateLoader::next_part(const Donor& donor) {
  for (; first_open_ < asked_of_.size(); ++first_open_) {
    if (!assembly_.has(first_open_) && asked_of_[first_open_] == 0) return first_open_;
  }
  return donor.wanted.empty() ? part_to_repeat(donor) : std::nullopt;
}

// Returns a part to request from this donor once more, when all parts are requested and this donor has nothing to send. It is
// the last part that was requested from the donor with the most pending requests.
std::optional<uint32_t> StateLoader::part_to_repeat(const Donor& donor) const {
  const Donor* slowest = nullptr;
  for (const auto& [id, other] : donors_) {
    if (&other == &donor || other.stage != Stage::serving || other.wanted.empty() || asked_of_[other.wanted.back()] > 1)
      continue;
    if (slowest == nullptr || other.wanted.size() > slowest->wanted.size()) slowest = &other;
  }
  return slowest == nullptr ? std::nullopt : std::optional(slowest->wanted.back());
}

}  // namespace unisono

// The plan of a StateLoader: which donors it asks, which state it loads, and which part it requests from which donor.
#include <algorithm>

#include "elastic/state/state_loader.h"

namespace unisono {
namespace {

// Bounds useless questions: if every peer has its own blobs, no other peer has the first donor's state.
constexpr uint32_t guesses_max = 16;

}  // namespace

void StateLoader::plan(Nanos now) {
  planned_ = now;
  if (ended_) return;
  if (chosen_ && assembly_.complete()) return finish();
  drop_state_without_donors();
  ask_donors(now);
  choose(now);
  if (chosen_ && assembly_.complete()) return finish();
  request_parts(now);
  check_patience(now);
}

// The donor will give parts of the chosen state, or has not refused yet.
bool StateLoader::waits_for(const Donor& donor) const {
  if (donor.stage == Stage::asked || donor.stage == Stage::serving) return true;
  if (donor.denied || donor.state != assembly_.state()) return false;
  return donor.stage == Stage::fresh || (donor.stage == Stage::resting && donor.busy);
}

// Gives up the chosen state only if no donor that has it is left.
void StateLoader::drop_state_without_donors() {
  if (!chosen_ || std::any_of(donors_.begin(), donors_.end(), [&](const auto& entry) { return waits_for(entry.second); }))
    return;
  chosen_ = false;
  ++counters_.switched;
  for (auto& [id, donor] : donors_) donor.denied = false;
}

void StateLoader::ask_donors(Nanos now) {
  if (chosen_) {
    // If every part has arrived or is requested, a further donor would have nothing to give.
    while (first_open_ < asked_of_.size() && (assembly_.has(first_open_) || asked_of_[first_open_] > 0)) ++first_open_;
    if (first_open_ >= asked_of_.size()) return;
  }
  for (uint32_t count = active(); count < options_.donors_at_once; ++count) {
    const auto id = next_to_ask(count, now);
    if (!id) return;
    auto& donor = donors_[*id];
    if (count > 0 && donor.state != (chosen_ ? assembly_.state() : popular_)) ++guesses_;
    donor.stage = Stage::asked;
    donor.heard = now;
    say(*id, StateAsk{options_.schema, chosen_ ? assembly_.state() : 0});
  }
}

std::optional<PeerId> StateLoader::next_to_ask(uint32_t active, Nanos now) const {
  for (const auto& id : order_) {
    const auto& donor = donors_.at(id);
    const bool may = donor.stage == Stage::fresh || (donor.stage == Stage::resting && now >= donor.again);
    if (!may || donor.state == 0) continue;
    if (chosen_ ? donor.denied || !may_have(donor, assembly_.state(), assembly_.manifest().step)
                : active > 0 && !may_have(donor, popular_, popular_step_))
      continue;
    return id;
  }
  return std::nullopt;
}

// The donor announced its state after another averaging step, so the announcement says nothing about the wanted state.
bool StateLoader::may_have(const Donor& donor, uint64_t state, int64_t step) const {
  if (state != 0 && donor.state == state) return true;
  return donor.state == donor.listed && donor.listed_step != step && guesses_ < guesses_max;
}

// Chooses the state that most of the asked donors offer. Parts loaded from an earlier choice stay.
void StateLoader::choose(Nanos now) {
  if (chosen_) return;
  std::map<uint64_t, size_t> offers;
  bool more_to_come = false;
  bool patient = true;
  for (const auto& [id, donor] : donors_) {
    more_to_come = more_to_come || donor.stage == Stage::asked;
    if (donor.stage != Stage::offered) continue;
    ++offers[donor.state];
    patient = patient && now < donor.heard + options_.times.stall_timeout / 4;
  }
  if (offers.empty() || (more_to_come && patient)) return;
  const Donor* best = nullptr;
  for (const auto& id : order_) {
    const auto& donor = donors_[id];
    if (donor.stage == Stage::offered && (best == nullptr || offers[donor.state] > offers[best->state])) best = &donor;
  }
  for (auto& [id, donor] : donors_) take_back(donor);
  assembly_.adopt(best->offer);
  chosen_ = true;
  asked_of_.assign(assembly_.part_count(), 0);
  first_open_ = 0;
  for (auto& [id, donor] : donors_) {
    if (donor.stage != Stage::offered) continue;
    donor.offer = {};
    donor.stage = donor.state == assembly_.state() ? Stage::serving : Stage::fresh;
    donor.told = now;
    donor.denied = donor.stage == Stage::fresh;
    if (donor.denied) say(id, StateDone{});
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
      if (donor.wanted.empty()) donor.heard = now;  // nothing was expected from it until now
      ++asked_of_[*part];
      donor.wanted.push_back(*part);
      want.parts.push_back(*part);
    }
    if (!want.parts.empty()) {
      donor.told = now;
      say(id, want);
    } else if (donor.wanted.empty()) {
      say(id, StateDone{});
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

// At the end, an idle donor gets a part that another donor would send last.
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

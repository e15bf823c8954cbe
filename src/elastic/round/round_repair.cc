#include "elastic/round/round_repair.h"

#include <algorithm>

namespace unisono {
namespace {

constexpr uint32_t tries_max = 3;

}  // namespace

RoundRepair::RoundRepair(uint32_t self, uint32_t members, Nanos stall_timeout, std::function<bool(uint32_t)> may_ask)
    : self_(self), members_(members), stall_timeout_(stall_timeout), may_ask_(std::move(may_ask)), answered_at_(members) {}

void RoundRepair::request_chunk(uint32_t chunk, bool until_received) { wanted_[chunk].until_received |= until_received; }

void RoundRepair::on_result(uint32_t chunk, uint32_t from, Nanos now) {
  answered_at_[from] = now;
  wanted_.erase(chunk);
}

void RoundRepair::on_miss(uint32_t chunk, uint32_t from) {
  const auto found = wanted_.find(chunk);
  if (found != wanted_.end() && found->second.asking && asked_member(found->second) == from) found->second.asking = false;
}

Nanos RoundRepair::expiry(const Wanted& wanted) const {
  return std::max(wanted.asked_at, answered_at_[asked_member(wanted)]) + stall_timeout_;
}

bool RoundRepair::ask_next(uint32_t chunk, Wanted& wanted, Nanos now) {
  while (wanted.until_received || wanted.tries < tries_max) {
    if (++wanted.offset >= members_) {
      if (!wanted.until_received) return false;
      wanted.offset = 0;
      wanted.pause_until = now + stall_timeout_ / 4;
      return true;
    }
    if (!may_ask_(asked_member(wanted))) continue;
    ++wanted.tries;
    wanted.asking = true;
    wanted.asked_at = now;
    requests_.push_back({.to = asked_member(wanted), .chunk = chunk});
    return true;
  }
  return false;
}

void RoundRepair::step(Nanos now) {
  for (auto at = wanted_.begin(); at != wanted_.end();) {
    auto& wanted = at->second;
    if (wanted.asking && (now >= expiry(wanted) || !may_ask_(asked_member(wanted)))) wanted.asking = false;
    const bool waits = wanted.asking || now < wanted.pause_until;
    if (waits || ask_next(at->first, wanted, now)) ++at;
    else at = wanted_.erase(at);
  }
}

Nanos RoundRepair::next_deadline() const {
  Nanos next = never;
  for (const auto& [chunk, wanted] : wanted_) next = std::min(next, wanted.asking ? expiry(wanted) : wanted.pause_until);
  return next;
}

}  // namespace unisono

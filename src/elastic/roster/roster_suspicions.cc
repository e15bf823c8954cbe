#include "elastic/roster/roster_suspicions.h"

#include <algorithm>
#include <utility>

namespace unisono {

void RosterDoubts::add(const PeerClaim& claim, uint32_t times, Nanos now) {
  if (times == 0) return;
  const auto& entry = claim.entry;
  auto place = std::ranges::lower_bound(doubts_, entry.id, {}, &Doubt::id);
  if (place == doubts_.end() || place->id != entry.id) place = doubts_.insert(place, {.id = entry.id});
  *place = {.id = entry.id,
            .incarnation = entry.incarnation,
            .status = entry.status,
            .proven = claim.proven,
            .sent = 0,
            .times = std::max(times, place->times - place->sent),
            .gone_at = now - Nanos{claim.gone_ms} * millisecond};
}

// Of who is gone more is merged than the standing.
bool RosterDoubts::covers(const PeerClaim& claim) const {
  const auto& entry = claim.entry;
  if (!claim.brief || is_gone(entry.status)) return false;
  const auto place = std::ranges::lower_bound(doubts_, entry.id, {}, &Doubt::id);
  return place != doubts_.end() && place->id == entry.id && std::pair(entry.incarnation, entry.status) <= std::pair(place->incarnation, place->status);
}

void RosterDoubts::take(size_t count, std::vector<PeerClaim>& claims, Nanos now) {
  if (count == 0) return;
  uint32_t least = ~0u;  // those that were sent so often, or less, are told
  if (count < doubts_.size()) {
    std::vector<uint32_t> sent(doubts_.size());
    std::ranges::transform(doubts_, sent.begin(), &Doubt::sent);
    std::ranges::nth_element(sent, sent.begin() + static_cast<ptrdiff_t>(count - 1));
    least = sent[count - 1];
  }
  const auto below = static_cast<size_t>(std::ranges::count_if(doubts_, [&](const Doubt& doubt) { return doubt.sent < least; }));
  size_t equal = count > below ? count - below : 0;  // of those that were sent as often, so many
  for (auto& doubt : doubts_) {
    if (doubt.sent > least || (doubt.sent == least && equal == 0)) continue;
    equal -= doubt.sent == least ? 1 : 0;
    ++doubt.sent;
    PeerClaim claim{.entry = {doubt.id, doubt.incarnation, doubt.status, {}}, .proven = doubt.proven, .brief = true};
    if (is_gone(doubt.status)) claim.gone_ms = static_cast<uint32_t>(std::max<Nanos>(now - doubt.gone_at, 0) / millisecond);
    claims.push_back(std::move(claim));
  }
  std::erase_if(doubts_, [](const Doubt& doubt) { return doubt.sent >= doubt.times; });
}

}  // namespace unisono

#include "elastic/roster/roster_suspicions.h"

#include <algorithm>
#include <utility>

namespace unisono {

void RosterSuspicions::add(const PeerClaim& claim, uint32_t times, Nanos now) {
  if (times == 0) return;
  const auto& entry = claim.entry;
  auto position = std::ranges::lower_bound(suspicions_, entry.id, {}, &Suspicion::id);
  if (position == suspicions_.end() || position->id != entry.id) position = suspicions_.insert(position, {.id = entry.id});
  *position = {.id = entry.id,
               .incarnation = entry.incarnation,
               .status = entry.status,
               .proven = claim.proven,
               .sent = 0,
               .times = std::max(times, position->times - position->sent),
               .gone_at = now - Nanos{claim.gone_ms} * millisecond};
}

// A claim that its peer is gone is never covered, because merging also needs the `gone_ms` and `proven` of such a claim.
bool RosterSuspicions::covers(const PeerClaim& claim) const {
  const auto& entry = claim.entry;
  if (!claim.brief || is_gone(entry.status)) return false;
  const auto position = std::ranges::lower_bound(suspicions_, entry.id, {}, &Suspicion::id);
  return position != suspicions_.end() && position->id == entry.id &&
         std::pair(entry.incarnation, entry.status) <= std::pair(position->incarnation, position->status);
}

void RosterSuspicions::take(size_t count, std::vector<PeerClaim>& claims, Nanos now) {
  if (count == 0) return;
  // Sends all suspicions that were sent fewer than `least` times, and some of those that were sent exactly `least` times.
  // `least` is chosen so that `count` suspicions are sent in all.
  uint32_t least = ~0u;
  if (count < suspicions_.size()) {
    std::vector<uint32_t> sent(suspicions_.size());
    std::ranges::transform(suspicions_, sent.begin(), &Suspicion::sent);
    std::ranges::nth_element(sent, sent.begin() + static_cast<ptrdiff_t>(count - 1));
    least = sent[count - 1];
  }
  const auto below = static_cast<size_t>(
      std::ranges::count_if(suspicions_, [&](const Suspicion& suspicion) { return suspicion.sent < least; }));
  // This many of the suspicions that were sent exactly `least` times are sent now.
  size_t equal = count > below ? count - below : 0;
  for (auto& suspicion : suspicions_) {
    if (suspicion.sent > least || (suspicion.sent == least && equal == 0)) continue;
    equal -= suspicion.sent == least ? 1 : 0;
    ++suspicion.sent;
    PeerClaim claim{
        .entry = {suspicion.id, suspicion.incarnation, suspicion.status, {}}, .proven = suspicion.proven, .brief = true};
    if (is_gone(suspicion.status))
      claim.gone_ms = static_cast<uint32_t>(std::max<Nanos>(now - suspicion.gone_at, 0) / millisecond);
    claims.push_back(std::move(claim));
  }
  std::erase_if(suspicions_, [](const Suspicion& suspicion) { return suspicion.sent >= suspicion.times; });
}

}  // namespace unisono

// Layouts: which peer makes the next one, and how all peers get it.
#include <algorithm>
#include <iterator>

#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

constexpr Nanos holder_patience = 5 * second;  // after this time the next holder makes the layout
constexpr size_t told_by_maker = 32;
constexpr size_t told_by_others = 3;

constexpr double steps_behind_max = 64;
constexpr uint32_t seeks_max = 8;  // after this many tries the missing peers count as gone and forgotten

// Larger numbers are ignored, because they would use up the numbers for all peers. No peer returns from a network cut so far
// behind, and no run that a process joins is so old.
constexpr uint64_t layouts_ahead_max = uint64_t{1} << 24;  // half a year at one layout per second
constexpr uint64_t layouts_joined_max = uint64_t{1} << 40;
constexpr uint64_t steps_joined_max = uint64_t{1} << 48;

// Other peers do not wait for peers outside the layout. If those are half of all, hardly any averaging step is exact, so a new
// layout is due at once. That happens at most once per doubling of the members.
bool leaves_out_most(const Layout& layout, const std::vector<PeerId>& members) {
  const auto named =
      std::ranges::count_if(layout.peers, [&](const PeerId& id) { return std::ranges::binary_search(members, id); });
  return 2 * static_cast<size_t>(named) <= members.size();
}

}  // namespace

void RosterKeeper::note_opened(uint64_t step, Nanos now) { take_steps_opened(std::min(step, step_number_max - 1) + 1, now); }

void RosterKeeper::take_steps_opened(uint64_t steps, Nanos now) {
  if (!running() || steps <= steps_opened_ ||
      steps > (state_ == JoinState::joining ? steps_joined_max : steps_opened_ + steps_ahead_max))
    return;
  if (steps_opened_ > 0) {
    const auto each = static_cast<double>(now - opened_at_) / static_cast<double>(steps - steps_opened_);
    step_interval_ += (each - step_interval_) / (step_interval_ > 0 ? 8 : 1);
  }
  opened_at_ = now;
  steps_opened_ = steps;
  spread_notes(now);
}

void RosterKeeper::note_layout(const PeerId& from, uint64_t version, uint64_t digest, Nanos now) {
  if (version == 0 || version > layout_version_max()) return;
  const auto* newest = newest_layout();
  if (newest != nullptr && (version < newest->version || (version == newest->version && digest >= newest->digest))) return;
  if (version > heard_version_) {
    heard_version_ = version;
    heard_at_ = now;
    heard_from_ = from;
  }
  if (now < pull_until_) return;
  pull_until_ = now + options_.times.probe_timeout;
  send(from, LayoutPull{version});
}

std::vector<PeerId> RosterKeeper::coordinators(std::string_view key, const SlotName& slot) const {
  auto& named = named_keepers_;
  if (named.layout_version != slot.layout_version || named.layout_digest != slot.layout_digest ||
      named.keepers_version != roster_.keepers_version()) {
    const auto* layout = layouts_.find(slot.layout_version, slot.layout_digest);
    named = {.layout_version = slot.layout_version,
             .layout_digest = slot.layout_digest,
             .keepers_version = roster_.keepers_version(),
             .peers = {}};
    if (layout == nullptr) named.layout_version = 0;  // unknown, but it may still come; not cached
    else
      std::ranges::copy_if(layout->peers, std::back_inserter(named.peers),
                           [&](const PeerId& id) { return roster_.is_keeper(id); });
  }
  return record_holders(key, named.peers.empty() ? roster_.keepers() : named.peers);
}

bool RosterKeeper::adopt_layout(const Layout& layout, Nanos now) {
  return running() && believable(layout) && take_layout(std::make_shared<const Layout>(layout), {}, told_by_others, now);
}

uint64_t RosterKeeper::layout_version_max() const {
  const auto* newest = newest_layout();
  if (newest == nullptr && !options_.found) return layouts_joined_max;
  return (newest == nullptr ? 0 : newest->version) + layouts_ahead_max;
}

bool RosterKeeper::believable(const Layout& layout) const {
  const auto* newest = newest_layout();
  const auto steps = std::max(steps_opened_, newest == nullptr ? 0 : newest->first_step);
  return layout.version > 0 && layout.version <= layout_version_max() && layout.first_step <= steps + steps_ahead_max;
}

bool RosterKeeper::take_layout(std::shared_ptr<const Layout> layout, const PeerId& from, size_t told, Nanos now) {
  std::vector<PeerId> newcomers;
  std::copy_if(layout->peers.begin(), layout->peers.end(), std::back_inserter(newcomers),
               [&](const PeerId& id) { return !layouts_.has_member(id); });
  if (!layouts_.add(layout)) return false;
  if (layouts_.newest() != layout) return true;
  newcomers_ = std::move(newcomers);
  layout_changed_ = true;
  adopted_at_ = now;
  wanted_since_ = never;
  heard_version_ = std::max(heard_version_, layout->version);
  pull_until_ = now;
  // Sent with the next change. Otherwise each layout would cost each peer one gossip item about every other peer.
  auto claim = roster_.claim_of(self_, now);
  claim.entry.facts.layout_version = layout->version;
  ++claim.entry.facts.counter;
  (void)roster_.merge(claim, now);
  spread_notes(now);
  // The layout's maker has heard that these members are alive. That gossip may not have arrived here, and until then this
  // process would choose other coordinators.
  for (const auto& id : layout->peers) {
    const auto* entry = roster_.find(id);
    if (entry == nullptr || id == self_ || entry->status != PeerStatus::joining) continue;
    judge(id, PeerStatus::alive, false, "a layout names it", now);
  }
  members_changed(now);
  for (const auto& to : some(roster_.present(), told, self_, now)) send_layout(to, now);
  sought_ = 0;
  seek_members(from, now);
  return true;
}

bool RosterKeeper::knows_all_of_layout() const {
  return std::ranges::all_of(layouts_.members(), [&](const PeerId& id) { return roster_.find(id) != nullptr; });
}

// When many peers join at once, gossip about some may still be on its way. Asks the layout's sender first, then any peer.
void RosterKeeper::seek_members(const PeerId& from, Nanos now) {
  seek_at_ = never;
  if (knows_all_of_layout() || sought_++ == seeks_max) return;
  seek_at_ = now + options_.times.gossip_period;
  if (from != PeerId{} && can_reach(from, now)) sends_.push_back({.to = from, .address = {}, .message = hello(now)});
  else compare_with_one(now);
}

// Includes the claims of members that the previous layout did not name. A receiver without the layout may not know them either,
// and would choose other coordinators.
void RosterKeeper::send_layout(const PeerId& to, Nanos now) {
  auto message = make_message(LayoutPush{layouts_.newest()});
  for (const auto& id : newcomers_) {
    if (message.claims.size() < roster_claims_max && roster_.find(id) != nullptr)
      message.claims.push_back(roster_.claim_of(id, now));
  }
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

void RosterKeeper::members_changed(Nanos now) {
  layout_at_ = std::min(layout_at_, std::max(now, looked_at_ + options_.times.gossip_period));
}

// Checks whether a new layout is due and whether this process must make it. If it is too early, sets when to check again.
void RosterKeeper::consider_layout(Nanos now) {
  layout_at_ = never;
  looked_at_ = now;
  if (state_ != JoinState::joined || self_entry().status != PeerStatus::alive) return;
  const auto newest = layouts_.newest();
  const uint64_t held = newest == nullptr ? 0 : newest->version;
  if (heard_version_ > held && now < heard_at_ + holder_patience && !roster_.gone(heard_from_)) {
    layout_at_ = heard_at_ + holder_patience;  // it should arrive, unless its holder does not send it
    return;
  }
  const auto members = roster_.full_members([&](const PeerId& id) { return layouts_.has_member(id); });
  const bool wanted =
      newest == nullptr ? members.size() >= options_.min_peers : !members.empty() && members != layouts_.members();
  if (!wanted) {
    wanted_since_ = never;
    return;
  }
  wanted_since_ = std::min(wanted_since_, now);
  const uint64_t version = std::max(held, heard_version_) + 1;
  const auto makers = holders(layout_key(options_.run_id, version));
  const auto place = std::find(makers.begin(), makers.end(), self_) - makers.begin();
  if (place == static_cast<ptrdiff_t>(makers.size())) return;
  const Nanos due = newest == nullptr || leaves_out_most(*newest, members)
                        ? wanted_since_
                        : std::max(wanted_since_, adopted_at_ + options_.times.relayout_period);
  const Nanos turn = due + place * holder_patience;
  if (now < turn) {
    layout_at_ = turn;
    return;
  }
  make_next_layout(version, members, now);
}

void RosterKeeper::make_next_layout(uint64_t version, const std::vector<PeerId>& members, Nanos now) {
  const auto newest = layouts_.newest();
  LayoutRequest request{.run = options_.run_id,
                        .version = version,
                        .grid = options_.grid,
                        .max_group = options_.max_group,
                        .dims = options_.dims};
  // The highest opened averaging step is steps_opened - 1; two after it, no peer has begun to form groups. If averaging steps
  // are shorter than gossip takes, more are skipped: as many as fit into half of a gossip_period.
  if (version > 1) {
    const auto behind = step_interval_ > 0
                            ? std::min(static_cast<double>(options_.times.gossip_period) / 2 / step_interval_, steps_behind_max)
                            : 0;
    request.first_step =
        std::max(steps_opened_ + 1 + static_cast<uint64_t>(behind), newest == nullptr ? 0 : newest->first_step);
  }
  auto layout = make_layout(request, members);
  if (!layout.ok() && !request.dims.empty()) {
    request.dims.clear();
    layout = make_layout(request, members);
  }
  if (!layout.ok()) return;
  ++counters_.layouts_made;
  (void)take_layout(std::make_shared<const Layout>(std::move(*layout)), self_, told_by_maker, now);
}

}  // namespace unisono

// The part of RosterKeeper for layouts: which peer makes the next layout, and how all peers get it.
#include <algorithm>
#include <iterator>

#include "elastic/roster/roster_keeper.h"

namespace unisono {

namespace {

// The first holder of the layout's key makes the layout. If it does not, each further holder waits this long for the holder
// before it, and then makes the layout itself.
constexpr Nanos holder_timeout = 5 * second;
constexpr size_t maker_push_count = 32;
constexpr size_t adopter_push_count = 3;

constexpr double steps_behind_max = 64;
// Other peers are asked for unknown members of the layout at most this many times. After that, the members are assumed to be
// gone.
constexpr uint32_t seeks_max = 8;

// Layout versions and averaging steps beyond these limits are ignored. Otherwise, one false number could use up the numbers of
// all peers. No honest peer exceeds the limits: no network cut lasts that long, and no run gets that old.
constexpr uint64_t layouts_ahead_max = uint64_t{1} << 24;  // one new layout per second for half a year
constexpr uint64_t layouts_joined_max = uint64_t{1} << 40;
constexpr uint64_t steps_joined_max = uint64_t{1} << 48;

// Returns true if at least half of `members` are not in the layout. Groups do not wait for peers that are not in the layout, so
// hardly any averaging step would be exact. Therefore a new layout is due at once. This can happen only once while the number
// of members doubles.
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
  spread_versions(now);
}

void RosterKeeper::note_layout(const PeerId& from, uint64_t version, uint64_t digest, Nanos now) {
  if (version == 0 || version > layout_version_max()) return;
  const auto* newest = newest_layout();
  if (newest != nullptr && (version < newest->version || (version == newest->version && digest >= newest->digest))) return;
  if (version > reported_version_) {
    reported_version_ = version;
    reported_at_ = now;
    reported_by_ = from;
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
    // The result for an unknown layout must not be cached, because the layout may still arrive.
    if (layout == nullptr) named.layout_version = 0;
    else
      std::ranges::copy_if(layout->peers, std::back_inserter(named.peers),
                           [&](const PeerId& id) { return roster_.is_keeper(id); });
  }
  return record_holders(key, named.peers.empty() ? roster_.keepers() : named.peers);
}

bool RosterKeeper::adopt_layout(const Layout& layout, Nanos now) {
  return running() && plausible(layout) && take_layout(std::make_shared<const Layout>(layout), {}, adopter_push_count, now);
}

uint64_t RosterKeeper::layout_version_max() const {
  const auto* newest = newest_layout();
  if (newest == nullptr && !options_.found) return layouts_joined_max;
  return (newest == nullptr ? 0 : newest->version) + layouts_ahead_max;
}

bool RosterKeeper::plausible(const Layout& layout) const {
  const auto* newest = newest_layout();
  const auto steps = std::max(steps_opened_, newest == nullptr ? 0 : newest->first_step);
  return layout.version > 0 && layout.version <= layout_version_max() && layout.first_step <= steps + steps_ahead_max;
}

bool RosterKeeper::take_layout(std::shared_ptr<const Layout> layout, const PeerId& from, size_t push_count, Nanos now) {
  std::vector<PeerId> newcomers;
  std::copy_if(layout->peers.begin(), layout->peers.end(), std::back_inserter(newcomers),
               [&](const PeerId& id) { return !layouts_.has_member(id); });
  if (!layouts_.add(layout)) return false;
  if (layouts_.newest() != layout) return true;
  newcomers_ = std::move(newcomers);
  layout_changed_ = true;
  adopted_at_ = now;
  wanted_since_ = never;
  reported_version_ = std::max(reported_version_, layout->version);
  pull_until_ = now;
  // Other peers learn the new layout_version with the next change of facts, and not at once. Otherwise, each layout would make
  // each peer gossip one item about every other peer.
  auto claim = roster_.claim_of(self_, now);
  claim.entry.facts.layout_version = layout->version;
  ++claim.entry.facts.counter;
  (void)roster_.merge(claim, now);
  spread_versions(now);
  // The maker of the layout knows that its members are alive, but the gossip about them may not have arrived here. Without
  // this, the process would choose other coordinators than the maker does until the gossip arrives.
  for (const auto& id : layout->peers) {
    const auto* entry = roster_.find(id);
    if (entry == nullptr || id == self_ || entry->status != PeerStatus::joining) continue;
    set_status(id, PeerStatus::alive, false, "a layout lists it", now);
  }
  members_changed(now);
  for (const auto& to : pick_peers(roster_.present(), push_count, self_, now)) send_layout(to, now);
  seek_count_ = 0;
  seek_members(from, now);
  return true;
}

bool RosterKeeper::knows_all_of_layout() const {
  return std::ranges::all_of(layouts_.members(), [&](const PeerId& id) { return roster_.find(id) != nullptr; });
}

// Asks for members of the layout that are unknown here. The first time it asks the sender of the layout, later it asks random
// peers. If many peers join at once, gossip about some of them may still be on its way.
void RosterKeeper::seek_members(const PeerId& from, Nanos now) {
  seek_at_ = never;
  if (knows_all_of_layout() || seek_count_++ == seeks_max) return;
  seek_at_ = now + options_.times.gossip_period;
  if (from != PeerId{} && can_reach(from, now)) sends_.push_back({.to = from, .address = {}, .message = hello(now)});
  else compare_with_one(now);
}

// Sends the newest layout, with claims about the members that are new in it. Without the claims, a receiver that does not know
// these members would choose other coordinators.
void RosterKeeper::send_layout(const PeerId& to, Nanos now) {
  auto message = make_message(LayoutPush{layouts_.newest()});
  for (const auto& id : newcomers_) {
    if (message.claims.size() < roster_claims_max && roster_.find(id) != nullptr)
      message.claims.push_back(roster_.claim_of(id, now));
  }
  sends_.push_back({.to = to, .address = {}, .message = std::move(message)});
}

void RosterKeeper::members_changed(Nanos now) {
  layout_at_ = std::min(layout_at_, std::max(now, considered_at_ + options_.times.gossip_period));
}

// Makes the next layout if it is due and this process has to make it. If it is not due yet, sets the time of the next check.
void RosterKeeper::consider_layout(Nanos now) {
  layout_at_ = never;
  considered_at_ = now;
  if (state_ != JoinState::joined || self_entry().status != PeerStatus::alive) return;
  const auto newest = layouts_.newest();
  const uint64_t held = newest == nullptr ? 0 : newest->version;
  if (reported_version_ > held && now < reported_at_ + holder_timeout && !roster_.gone(reported_by_)) {
    // Wait, so that the newer layout can arrive.
    layout_at_ = reported_at_ + holder_timeout;
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
  const uint64_t version = std::max(held, reported_version_) + 1;
  const auto makers = holders(layout_key(options_.run_id, version));
  const auto maker_index = std::find(makers.begin(), makers.end(), self_) - makers.begin();
  if (maker_index == static_cast<ptrdiff_t>(makers.size())) return;
  const Nanos due = newest == nullptr || leaves_out_most(*newest, members)
                        ? wanted_since_
                        : std::max(wanted_since_, adopted_at_ + options_.times.relayout_period);
  const Nanos turn = due + maker_index * holder_timeout;
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
  // The highest opened averaging step is steps_opened - 1. No peer forms groups for the step that comes two steps later yet, so
  // the layout begins there. Averaging steps may be faster than gossip. Therefore the beginning is moved further, by as many
  // steps as fit into half a gossip_period.
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
  (void)take_layout(std::make_shared<const Layout>(std::move(*layout)), self_, maker_push_count, now);
}

}  // namespace unisono

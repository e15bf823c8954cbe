#include "elastic/peer/moshpit_peer.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"
#include "elastic/peer/averaging_step.h"
#include "elastic/peer/moshpit_group.h"

namespace unisono {

namespace {

KeeperOptions keeper_options(const MoshpitSettings& settings) {
  return {.run_id = settings.run_id,
          .times = settings.times,
          .seeds = settings.seeds,
          .found = settings.found,
          .join_timeout = settings.join_timeout,
          .min_peers = settings.min_peers,
          .max_peers = settings.max_peers,
          .grid = settings.grid,
          .max_group = settings.max_group,
          .dims = settings.dims,
          .seed = settings.seed};
}

PeerEntry own_entry(const MoshpitSettings& settings) {
  PeerEntry entry;
  entry.id = settings.self;
  entry.facts.name = settings.name;
  entry.facts.addresses = settings.role == ElasticRole::client ? std::vector<std::string>{} : settings.addresses;
  entry.facts.role = settings.role;
  entry.facts.schema_hash = settings.schema;
  return entry;
}

double vector_bytes(const MoshpitSettings& settings) { return static_cast<double>(settings.elements) * sizeof(float); }

CoordinatorOptions coordinator_options(const MoshpitSettings& settings, const ChunkTable& table) {
  return {.self = settings.self,
          .run = settings.run_id,
          .times = settings.times,
          .max_group = settings.max_group,
          .chunk_count = table.chunks(),
          .min_chunks = settings.min_chunks,
          .schema = settings.schema,
          .seed = mix64(settings.seed + 1),
          .vector_bytes = vector_bytes(settings)};
}

}  // namespace

MoshpitPeer::MoshpitPeer(const MoshpitSettings& settings, ElasticPort& port)
    : settings_(settings),
      port_(port),
      table_(settings.elements, settings.max_group),
      keeper_(keeper_options(settings), own_entry(settings)),
      coordinator_(coordinator_options(settings, table_), keeper_),
      seeker_({.self = settings.self, .run = settings.run_id, .times = settings.times, .vector_bytes = vector_bytes(settings)},
              keeper_),
      state_(settings, table_),
      newcomer_(table_.chunks(), false) {}

MoshpitPeer::~MoshpitPeer() = default;

Status MoshpitPeer::start(Nanos now) {
  auto status = keeper_.start(now);
  if (status.ok()) act(now);
  return status;
}

void MoshpitPeer::received(const PeerId& from, SharedBuffer message, Nanos now) {
  if (left_ || message.size() == 0) return;
  switch (static_cast<ElasticChannel>(message.data()[0])) {
    case ElasticChannel::roster: on_roster(from, message, now); break;
    case ElasticChannel::formation: on_formation(from, message, now); break;
    case ElasticChannel::round: on_round(from, std::move(message), now); break;
    case ElasticChannel::state: on_state(from, message, now); break;
    default: refuse(from, {Code::corrupt, concat("a message for channel ", static_cast<int>(message.data()[0]))});
  }
  act(now);
}

void MoshpitPeer::refuse(const PeerId& from, const Status& why) {
  ++refused_;
  last_refusal_ = label_of(from) + ": " + why.message();
}

std::string MoshpitPeer::label_of(const PeerId& peer) const {
  const auto* entry = keeper_.roster().find(peer);
  return entry == nullptr ? "an unknown peer" : entry->facts.name.empty() ? label(*entry) : entry->facts.name;
}

void MoshpitPeer::on_roster(const PeerId& from, const SharedBuffer& message, Nanos now) {
  const auto decoded = decode_roster_message(message.view());
  if (!decoded.ok()) return refuse(from, decoded.status());
  keeper_.message(from, *decoded, now);
}

void MoshpitPeer::on_formation(const PeerId& from, const SharedBuffer& message, Nanos now) {
  const auto decoded = decode_formation(message.view());
  if (!decoded.ok()) return refuse(from, decoded.status());
  if (!for_coordinator(*decoded)) return seeker_.message(from, *decoded, now);
  coordinator_.message(from, *decoded, now);
  // A member registers again right after it has sent its layout. Therefore the layout must be known before the next message is
  // handled.
  for (const auto& layout : coordinator_.take_layouts()) (void)keeper_.adopt_layout(layout, now);
}

void MoshpitPeer::on_state(const PeerId& from, const SharedBuffer& message, Nanos now) {
  if (const auto status = state_.message(from, message, now); !status.ok()) refuse(from, status);
}

void MoshpitPeer::link_lost(const PeerId& peer, const Status& why, bool refused, Nanos now) {
  if (left_) return;
  if (refused) keeper_.known_dead(peer, why.message(), now);
  else keeper_.link_lost(peer, now);
  state_.peer_gone(peer, now);
  member_gone(peer, MemberLoss::closed, now);
  act(now);
}

void MoshpitPeer::address_failed(const std::string& address, const Status& why, Nanos now) {
  if (left_) return;
  keeper_.address_unreachable(address, why.message(), why.code() == Code::invalid, now);
  act(now);
}

void MoshpitPeer::credit(const PeerId& peer, Nanos now) {
  if (group_ == nullptr) return;
  const auto rank = group_->descriptor().rank_of(peer);
  if (rank < group_->descriptor().members.size()) group_->round().credit(rank, now);
  act(now);
}

void MoshpitPeer::woke(Nanos now) {
  if (left_) return;
  keeper_.woke(now);
  coordinator_.woke(now);
  // Whether a peer that cannot be reached is dead is decided by the roster.
  if (const auto* silent = seeker_.silent_coordinator(now); silent != nullptr && port_.is_out(*silent))
    seeker_.excuse_silence(now);
  seeker_.woke(now);
  state_.woke(now);
  if (group_ != nullptr) group_->round().woke(now);
  if (now >= drop_at_) drop_groups(now);
  if (now >= leave_by_ && group_ != nullptr) group_->round().abandon(now);
  act(now);
}

Nanos MoshpitPeer::next_deadline() const {
  if (left_) return never;
  auto next = std::min(
      {keeper_.next_deadline(), coordinator_.next_deadline(), seeker_.next_deadline(), state_.next_deadline(), drop_at_});
  if (group_ != nullptr) next = std::min(next, group_->round().next_deadline());
  if (group_ != nullptr) next = std::min(next, leave_by_);
  if (step_ != nullptr) next = std::min(next, step_->choosing_until());
  return next;
}

void MoshpitPeer::act(Nanos now) {
  for (bool more = true; more && !left_;) {
    more = act_roster(now);
    more |= act_formation(now);
    more |= act_groups(now);
    more |= act_step(now);
    more |= state_.act(keeper_, port_, now);
    if (leave_by_ != never && group_ == nullptr && step_ == nullptr) {
      state_.leave();
      (void)state_.act(keeper_, port_, now);
      (void)act_formation(now);
      keeper_.leave(now);
      (void)act_roster(now);
      left_ = true;
    }
  }
}

bool MoshpitPeer::act_roster(Nanos now) {
  bool acted = false;
  for (const auto& event : keeper_.take_events()) {
    acted = true;
    const auto* entry = keeper_.roster().find(event.peer);
    if (entry != nullptr && event.peer != settings_.self) {
      if (is_gone(event.now)) peer_gone(event, now);
      else port_.know(event.peer, entry->facts.addresses, entry->facts.role != ElasticRole::client);
    }
    state_.roster_changed();
  }
  for (auto& one : keeper_.take_sends()) {
    acted = true;
    auto bytes = SharedBuffer::copy(encode(one.message));
    if (one.to == PeerId{}) port_.send_to_address(one.address, std::move(bytes));
    else port_.send(one.to, std::move(bytes));
  }
  return acted;
}

void MoshpitPeer::peer_gone(const RosterEvent& event, Nanos now) {
  coordinator_.peer_gone(event.peer, now);
  seeker_.peer_gone(event.peer, now);
  state_.peer_gone(event.peer, now);
  member_gone(event.peer, event.now == PeerStatus::left ? MemberLoss::left : MemberLoss::dead, now);
  port_.close(event.peer);
}

void MoshpitPeer::send_formation(const FormationSend& one) {
  if (one.to == settings_.self) own_messages_.push_back(one);
  else port_.send(one.to, SharedBuffer::copy(encode(one.message)));
}

bool MoshpitPeer::act_formation(Nanos now) {
  bool acted = false;
  for (const auto& one : coordinator_.take_sends()) send_formation(one), acted = true;
  for (const auto& one : seeker_.take_sends()) send_formation(one), acted = true;
  while (!own_messages_.empty()) {
    const auto one = std::move(own_messages_.front());
    own_messages_.pop_front();
    if (for_coordinator(one.message)) coordinator_.message(settings_.self, one.message, now);
    else seeker_.message(settings_.self, one.message, now);
    acted = true;
  }
  for (const auto& layout : coordinator_.take_layouts()) (void)keeper_.adopt_layout(layout, now), acted = true;
  if (const auto opened = coordinator_.take_opened()) keeper_.note_opened(*opened, now), acted = true;
  if (const auto opened = seeker_.take_opened()) keeper_.note_opened(*opened, now), acted = true;
  for (const auto& one : seeker_.take_declines()) {
    acted = true;
    if (group_ != nullptr && group_->id() == one.id) member_gone(one.peer, MemberLoss::declined, now);
  }
  return acted;
}

void MoshpitPeer::set_bandwidth(double bytes_per_second, Nanos now) {
  if (left_) return;
  keeper_.set_bandwidth(bytes_per_second, now);
  act(now);
}

void MoshpitPeer::set_seeds(const std::vector<std::string>& addresses, Nanos now) {
  if (left_) return;
  keeper_.set_seeds(addresses, now);
  act(now);
}

void MoshpitPeer::offer_values(const SharedBuffer& values, Nanos now) {
  if (left_ || next_step_ > 0 || settings_.role == ElasticRole::reducer) return;
  state_.keep(-1, ChunkValues(table_, values), keeper_, now);
  act(now);
}

void MoshpitPeer::leave(Nanos now) {
  if (left_ || leave_by_ != never) return;
  leave_by_ = now + settings_.times.leave_grace;
  cancel_step(now);
  act(now);
}

Result<ElasticGroupLocation> MoshpitPeer::group_location() const {
  const auto* layout = keeper_.newest_layout();
  if (layout == nullptr) return Status(Code::unavailable, "there is no layout yet: fewer than min_peers peers have joined");
  ElasticGroupLocation location{.layout = *layout,
                                .rank = layout->rank_of(settings_.self),
                                .step = static_cast<int64_t>(next_step_) - 1,
                                .rendezvous = {}};
  if (location.rank == layout->peers.size())
    return Status(Code::unavailable,
                  concat("layout ", layout->version, " does not list this process yet; try again after the next layout"));
  const auto* first = keeper_.roster().find(layout->peers.front());
  if (first == nullptr || is_gone(first->status))
    return Status(Code::unavailable,
                  concat("the first peer of layout ", layout->version, " is gone; try again after the next layout"));
  for (const auto& address : first->facts.addresses) {
    if (address.starts_with(group_address_begin)) location.rendezvous = address;
  }
  return location;
}

void MoshpitPeer::publish_address(const std::string& address, Nanos now) {
  if (left_) return;
  keeper_.add_address(address, now);
  act(now);
}

size_t MoshpitPeer::held_bytes() const {
  size_t bytes = early_bytes_;
  if (group_ != nullptr) bytes += group_->round().held_bytes();
  for (const auto& group : groups_) bytes += group->round().held_bytes();
  return bytes;
}

ElasticStatus MoshpitPeer::status(Nanos now) const {
  ElasticStatus status;
  status.phase = left_                ? "ended"
                 : leave_by_ != never ? "leaving"
                 : step_ != nullptr   ? "averaging"
                 : state_.loading()   ? "loading"
                 : joined()           ? "idle"
                                      : "joining";
  for (const auto& claim : keeper_.roster().claims(now)) {
    const auto& facts = claim.entry.facts;
    status.peers.push_back({.name = facts.name,
                            .status = name(claim.entry.status),
                            .address = facts.addresses.empty() ? "" : facts.addresses.front(),
                            .role = name(facts.role),
                            .bytes_per_second = std::max(0.0, facts.bandwidth),
                            .finished_step = facts.finished_step,
                            .self = claim.entry.id == settings_.self});
  }
  if (const auto* layout = keeper_.newest_layout()) status.layout = layout->version, status.dims = layout->dims;
  status.averaging_steps = steps_done_;
  status.exact_averaging_steps = exact_averaging_steps_;
  status.refused = refused_;
  status.last_refusal = last_refusal_;
  status.serving = state_.serving();
  return status;
}

}  // namespace unisono

#include "group/lifecycle/membership.h"

#include <algorithm>
#include <utility>

#include "engine/group_core.h"

namespace unisono {

// A link counts as thin (slow) if a packet of packet_bytes takes longer than thin_packet_us. That is the case below 400 Mbit/s.
static constexpr double packet_bytes = 1500, thin_packet_us = 30;

void Membership::join(std::unique_ptr<RendezvousSession> session, const Roster& roster) {
  session_ = std::move(session);
  roster_ = roster;
  reform_ = std::make_unique<Reform>(roster, self_);
}

const MemberRecord* Membership::record_of(PeerIndex peer) const {
  const auto rank = static_cast<size_t>(std::ranges::find(peers_, peer) - peers_.begin());
  // If a re-forming could not connect all new members, `peers_` still belongs to the old roster, and its size may differ from
  // that of the new one.
  return rank < std::min(peers_.size(), roster_.members.size()) ? &roster_.members[rank] : nullptr;
}

PeerIndex Membership::add_process(const PeerId& id) {
  process_ids_.push_back(id);
  return static_cast<PeerIndex>(process_ids_.size() - 1);
}

PeerIndex Membership::index_of(const PeerId& id) const {
  const auto at = std::ranges::find(process_ids_, id);
  return at == process_ids_.end() ? self_peer : static_cast<PeerIndex>(at - process_ids_.begin());
}

void Membership::begin_formation() {
  ++formation_;
  topology_known_ = false;
}

void Membership::set_confirmed(PeerIndex peer, uint32_t epoch) {
  const auto readiness = ready_.find(peer);
  if (readiness != ready_.end() && readiness->second.epoch == epoch) readiness->second.confirmed = true;
}

const Membership::Readiness* Membership::ready(PeerIndex peer) const {
  const auto readiness = ready_.find(peer);
  return readiness == ready_.end() ? nullptr : &readiness->second;
}

void Membership::set_topology_known(const Topology& topology) {
  linked_hosts_ = host_records();
  const auto thin = [](const LinkProfile& link, bool measured) {
    return measured && packet_bytes / speed_of(link).bytes_per_us > thin_packet_us;
  };
  const auto self = static_cast<size_t>(std::ranges::find(peers_, self_peer) - peers_.begin());
  const auto& own = roster_.members.at(self);
  const auto here = std::ranges::count_if(roster_.members, [&](const MemberRecord& member) { return same_host(member, own); });
  has_thin_links_ = peers_.size() > 1 && (here == 1 || thin(topology.inside, topology.inside_measured)) &&
                    (linked_hosts_.size() == 1 || thin(topology.between, topology.between_measured));
  topology_known_ = true;
}

// Returns the record of the lowest rank of each host.
std::vector<MemberRecord> Membership::host_records() const {
  std::vector<MemberRecord> records;
  for (const auto rank : hosts_of(roster_)) records.push_back(roster_.members[rank]);
  return records;
}

HostLinks Membership::known_links(const HostLinks& links) const {
  const auto hosts = host_records();
  HostLinks result(links.hosts == 0 ? 0 : static_cast<uint32_t>(hosts.size()));
  const auto number = [&](uint32_t host) {
    const auto same = [&](const MemberRecord& known) { return same_host(known, hosts[host]); };
    return static_cast<uint32_t>(std::ranges::find_if(linked_hosts_, same) - linked_hosts_.begin());
  };
  for (uint32_t b = 1; b < result.hosts; ++b) {
    for (uint32_t a = 0; a < b; ++a) {
      const auto was_a = number(a), was_b = number(b);
      if (std::max(was_a, was_b) < links.hosts) result.between(a, b) = links.between(was_a, was_b);
    }
  }
  return result;
}

// Returns the members to which this link is up.
std::vector<PeerIndex> Membership::served_by(const Link& link) const {
  std::vector<PeerIndex> served;
  for (const auto peer : peers_) {
    if (peer != self_peer && link.connector->state(peer) == LinkState::up) served.push_back(peer);
  }
  return served;
}

uint32_t Membership::datagram_bytes() const {
  uint32_t bytes = UINT32_MAX;
  for (const auto& link : links_) {
    const auto served = served_by(link);
    if (served.empty()) continue;
    const auto* datagrams = link.transport->datagrams();
    bytes = std::min(bytes, datagrams == nullptr ? 0 : datagrams->datagram_bytes(served));
  }
  return bytes == UINT32_MAX ? 0 : bytes;
}

bool Membership::datagram_bytes_known() const {
  return std::ranges::all_of(links_, [this](const auto& link) {
    const auto* datagrams = link.transport->datagrams();
    return datagrams == nullptr || datagrams->datagram_bytes_known(served_by(link));
  });
}

void Membership::measure_rate(PeerIndex peer) {
  for (const auto& link : links_) {
    auto* datagrams = link.transport->datagrams();
    if (datagrams != nullptr && link.connector->state(peer) == LinkState::up) datagrams->measure_rate(peer);
  }
}

}  // namespace unisono

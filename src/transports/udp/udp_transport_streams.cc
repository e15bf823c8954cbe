// The functions of the UDP transport for lossy streams: for groups, for their datagrams, and for repair requests.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/concat.h"
#include "transports/udp/udp_transport.h"

namespace unisono {

UdpTransport::Group* UdpTransport::find_group(uint32_t number) const {
  for (const auto& group : groups_) {
    if (group->number == number) return group.get();
  }
  return nullptr;
}

UdpGroupPeer* UdpTransport::find_peer(uint32_t number, Rank rank) const {
  const auto* group = find_group(number);
  return group != nullptr && rank < group->ranks.size() ? group->ranks[rank].get() : nullptr;
}

// Returns the flow to a rank of the group; null if the link to the rank is not up.
UdpFlow* UdpTransport::flow_of(const Group& group, Rank rank) const {
  const auto* link = find(group.peers[rank]);
  return link != nullptr && link->state == LinkState::up ? link->flow.get() : nullptr;
}

Status UdpTransport::open_group(uint32_t number, const DatagramGroup& what, std::span<const PeerIndex> peers,
                                DatagramSink& sink) {
  const auto invalid = [&](const std::string& why) { return Status(Code::invalid, concat("udp: group ", number, ": ", why)); };
  if (what.world < 2 || what.world > UINT16_MAX || what.self >= what.world || peers.size() != what.world) {
    return invalid(concat("rank ", what.self, " of ", what.world, " with ", peers.size(), " peers"));
  }
  if (find_group(number) != nullptr) return invalid("is open already");
  const auto key = context_key(what.run_id, what.epoch);
  if (contexts_.contains(key)) return invalid("its epoch is in use");
  auto group = std::make_unique<Group>();
  group->number = number;
  group->what = what;
  group->peers.assign(peers.begin(), peers.end());
  group->sink = &sink;
  for (Rank rank = 0; rank < what.world; ++rank) {
    if (rank != what.self && flow_of(*group, rank) == nullptr)
      return Status(Code::unavailable, concat("udp: the link to rank ", rank, " is not up"));
  }
  for (Rank rank = 0; rank < what.world; ++rank) {
    group->ranks.push_back(nullptr);
    if (rank == what.self) continue;
    auto& flow = *flow_of(*group, rank);
    auto peer = std::make_unique<UdpGroupPeer>(what, rank, flow.header_bytes());
    peer->firewalled_before = flow.sending().firewalled;
    peer->refused_before = flow.refusals();
    flow.attach(*peer);
    group->ranks.back() = std::move(peer);
  }
  contexts_[key] = {.run_id = what.run_id, .epoch = what.epoch, .link = nullptr, .group = group.get()};
  ++changes_;
  groups_.push_back(std::move(group));
  return {};
}

void UdpTransport::close_group(uint32_t number) {
  const auto at = std::find_if(groups_.begin(), groups_.end(), [&](const auto& group) { return group->number == number; });
  if (at == groups_.end()) return;
  auto& group = **at;
  // After this call, the group's streams may be freed. No outbox refers to them any more: datagrams that wait for the network
  // have copies of their payloads, and all other datagrams are flushed before any upcall.
  for (const auto& peer : group.ranks) {
    if (!peer) continue;
    for (const auto& link : links_) {
      if (link && link->flow) link->flow->detach(*peer);
    }
    for (const auto& link : drains_) link->flow->detach(*peer);
    for (const auto& link : closed_links_) {
      if (link->flow) link->flow->detach(*peer);
    }
  }
  contexts_.erase(context_key(group.what.run_id, group.what.epoch));
  ++changes_;
  std::erase_if(streams_sent_, [&](const auto& event) { return event.group == number; });
  if (polling_) closed_groups_.push_back(std::move(*at));
  groups_.erase(at);
}

uint32_t UdpTransport::datagram_bytes(std::span<const PeerIndex> peers) const {
  uint32_t bytes = 0;
  for (const auto peer : peers) {
    const auto* link = find(peer);
    if (link == nullptr || !link->flow) continue;
    bytes = bytes == 0 ? link->flow->datagram_bytes() : std::min(bytes, link->flow->datagram_bytes());
  }
  return (bytes == 0 ? PathProbeSettings::assumed_bytes : bytes) - (header_bytes() - datagram_header_bytes);
}

bool UdpTransport::datagram_bytes_known(std::span<const PeerIndex> peers) const {
  return std::ranges::all_of(peers, [this](PeerIndex peer) {
    const auto* link = find(peer);
    return link == nullptr || !link->flow || link->flow->datagram_bytes_known();
  });
}

void UdpTransport::measure_rate(PeerIndex peer) {
  auto* link = find(peer);
  if (link != nullptr && link->state == LinkState::up) link->flow->measure_rate(now_);
}

// Streams ------------------------------------------------------------------------------------------------------------

void UdpTransport::send_stream(uint32_t number, const OutStream& stream) {
  auto* peer = find_peer(number, stream.to);
  if (peer == nullptr) return;
  if (!polling_) refresh();
  peer->streams.push(stream, now_);
  auto& group = *find_group(number);
  auto* link = find(group.peers[stream.to]);
  if (link == nullptr || link->state != LinkState::up) return;
  update_pacer(*link, now_);
  if (polling_ || !options_.clock) return;
  send_paced(now_);
  flush();
}

void UdpTransport::drop_stream(uint32_t number, Rank to, StreamName stream) {
  if (auto* peer = find_peer(number, to)) peer->streams.drop(stream);
}

void UdpTransport::request_repair(uint32_t number, Rank from, StreamName stream, uint16_t slice, uint32_t first,
                                  std::span<const std::byte> bitmap) {
  auto* peer = find_peer(number, from);
  auto* flow = peer == nullptr ? nullptr : flow_of(*find_group(number), from);
  if (flow == nullptr) return;
  DatagramHeader header;
  header.kind = DatagramKind::repair_request;
  header.op = stream.op;
  header.phase = stream.phase;
  header.slice = slice;
  flow->queue_repair(*peer, header, first, bitmap);
}

bool UdpTransport::stream_unconfirmed(uint32_t number, Rank to, StreamName stream) const {
  const auto* peer = find_peer(number, to);
  return peer != nullptr && peer->streams.is_unconfirmed(stream);
}

Nanos UdpTransport::answer_time(uint32_t number, Rank rank) const {
  const auto* group = find_group(number);
  const auto* flow =
      group == nullptr || rank >= group->peers.size() || rank == group->what.self ? nullptr : flow_of(*group, rank);
  return flow == nullptr ? RttEstimator::unmeasured_answer_time : flow->rtt().answer_time();
}

DatagramCounters UdpTransport::datagram_counters(uint32_t number, Rank rank) const {
  DatagramCounters counters;
  for (const auto& port : ports_) counters.own_drops += port->socket->own_drops();
  const auto* group = find_group(number);
  if (group == nullptr || rank >= group->ranks.size()) return counters;
  const auto* peer = group->ranks[rank].get();
  if (peer == nullptr) {
    std::copy(std::begin(group->dropped), std::end(group->dropped), std::begin(counters.dropped));
    return counters;
  }
  const auto& counts = peer->streams.counts();
  counters.sent = counts.sent + counts.repaired + counts.more_parts + peer->ends_sent;
  counters.repaired = counts.repaired;
  counters.received = peer->received;
  std::copy(std::begin(peer->dropped), std::end(peer->dropped), std::begin(counters.dropped));
  const auto* link = find(group->peers[rank]);
  if (link == nullptr || !link->flow) return counters;
  counters.firewalled = link->flow->sending().firewalled - std::min(link->flow->sending().firewalled, peer->firewalled_before);
  counters.refused = link->flow->refusals() - std::min(link->flow->refusals(), peer->refused_before);
  return counters;
}

// Datagrams in -------------------------------------------------------------------------------------------------------

DatagramFault UdpTransport::on_group_datagram(const Classified& classified, std::span<const std::byte> payload,
                                              const UdpArrival& arrival) {
  auto fault = classified.flow->on_group_datagram(classified.header, arrival);
  if (fault == DatagramFault::none) fault = deliver(*classified.group, *classified.peer, classified.header, payload);
  if (fault == DatagramFault::none) ++classified.peer->received;
  return fault;
}

DatagramFault UdpTransport::deliver(Group& group, UdpGroupPeer& peer, const DatagramHeader& header,
                                    std::span<const std::byte> payload) {
  switch (header.kind) {
    case DatagramKind::data:
      if ((header.flags & datagram_part) != 0) {
        const auto fault = peer.parts.add(header, payload);
        if (fault != DatagramFault::none || !peer.parts.whole()) return fault;
        return group.sink->datagram(group.number, header.sender, peer.parts.header(), peer.parts.bytes(), now_);
      }
      [[fallthrough]];
    case DatagramKind::end: return group.sink->datagram(group.number, header.sender, header, payload, now_);
    case DatagramKind::repair_request: {
      const auto fault = peer.streams.on_repair_request(header, payload);
      if (auto* link = find(group.peers[peer.rank]); link != nullptr && link->state == LinkState::up) update_pacer(*link, now_);
      if (fault == DatagramFault::size || fault == DatagramFault::place) return fault;
      uint32_t first = 0;
      std::memcpy(&first, payload.data(), sizeof first);
      group.sink->stream_requested(group.number, header.sender, stream_request(header, first, payload.subspan(sizeof first)),
                                   now_);
      return fault;
    }
    default: return DatagramFault::kind;  // Datagrams of these kinds belong to links, not to groups.
  }
}

bool UdpTransport::report_streams() {
  for (const auto& group : groups_) {
    for (const auto& peer : group->ranks) {
      StreamName name;
      while (peer && peer->streams.held() > 0 && peer->streams.take_sent(name))
        streams_sent_.push_back({group->number, peer->rank, name});
    }
  }
  bool any = false;
  for (size_t i = 0; i < streams_sent_.size(); ++i) {
    const auto event = streams_sent_[i];
    any = true;
    if (const auto* group = find_group(event.group)) group->sink->stream_sent(event.group, event.to, event.name);
  }
  streams_sent_.clear();
  return any;
}

}  // namespace unisono

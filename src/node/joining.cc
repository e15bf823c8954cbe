#include "node/joining.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <thread>

#include "node/reforming.h"
#include "transports/shm_transport.h"
#include "transports/tcp_transport.h"

namespace unisono {
namespace {

Result<std::vector<Link>> make_links(const ResolvedOptions& options, PeerId self) {
  std::vector<Link> links;
  if (options.transport != "tcp") {
    auto shm = ShmTransport::make({.self = self, .payload_checksum = options.payload_checksum});
    if (!shm) return shm.status();
    auto* connector = shm->get();
    links.push_back({std::move(*shm), connector});
  }
  if (options.transport != "shm") {
    TcpOptions tcp;
    tcp.self = self;
    tcp.interface = options.interface;
    tcp.streams = std::max(1u, options.streams_per_link);
    tcp.payload_checksum = options.payload_checksum;
    auto made = TcpTransport::make(tcp);
    if (!made) return made.status();
    auto* connector = made->get();
    links.push_back({std::move(*made), connector});
  }
  return links;
}

std::string_view scheme_of(std::string_view endpoint) { return endpoint.substr(0, endpoint.find("://")); }

// Everything up to and including the last slash: for shm the host that the memory is on.
std::string_view place_part(std::string_view endpoint) { return endpoint.substr(0, endpoint.rfind('/') + 1); }

// The endpoints of the other process that this transport can use: of the same kind, and for shm on the same host.
std::vector<std::string> usable(const Connector& connector, const std::vector<std::string>& theirs) {
  const auto ours = connector.endpoints();
  std::vector<std::string> result;
  for (const auto& endpoint : theirs) {
    const bool fits = std::any_of(ours.begin(), ours.end(), [&](const std::string& own) {
      if (scheme_of(own) != scheme_of(endpoint)) return false;
      return scheme_of(own) != "shm" || place_part(own) == place_part(endpoint);
    });
    if (fits) result.push_back(endpoint);
  }
  return result;
}

Status start_link(Node& node, const MemberRecord& member, PeerIndex peer, Nanos deadline) {
  std::string known;
  for (const auto& endpoint : member.endpoints) known += (known.empty() ? "" : ", ") + endpoint;
  for (auto& link : node.links()) {
    auto endpoints = usable(*link.connector, member.endpoints);
    if (endpoints.empty()) continue;
    node.engine().add_peer(peer, *link.transport, place_of(member));
    return link.connector->add_peer({.peer = peer, .id = member.id, .label = place_of(member), .endpoints = std::move(endpoints), .dial = node.self() > member.id, .deadline = deadline});
  }
  return {Code::unavailable, label(member) + " cannot be reached: it offers " + (known.empty() ? "no endpoints" : known) +
                                 "; this process uses transport " + node.options().transport};
}

bool is_up(Node& node, PeerIndex peer) {
  return std::any_of(node.links().begin(), node.links().end(), [&](Link& link) { return link.connector->state(peer) == LinkState::up; });
}

// Why the members cannot come together as they are: the first one whose link is gone, or that re-forms already.
Status trouble(Node& node) {
  for (Rank rank = 0; rank < node.peers().size(); ++rank) {
    if (node.peers()[rank] == self_peer) continue;
    const auto& status = node.engine().peer_status(node.peers()[rank]);
    if (!status.ok()) return {status.code(), "rank " + std::to_string(rank) + ", " + status.message()};
  }
  if (!node.removed().ok()) return node.removed();
  if (node.reform() != nullptr && node.reform()->wanted()) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

// Processes of the roster on this host, this one included.
uint32_t local_world(const Roster& roster, Rank self) {
  return static_cast<uint32_t>(std::count_if(roster.members.begin(), roster.members.end(), [&](const auto& m) { return m.host == roster.members[self].host; }));
}

void on_topology(Node& node, ByteView bytes) {
  ByteReader reader(bytes);
  Topology topology;
  topology.inside = reader.read<LinkProfile>();
  topology.between = reader.read<LinkProfile>();
  if (!reader.done()) return;
  node.engine().set_topology(topology);
  node.topology_known() = true;
}

void on_ready(Node& node, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>();
  if (reader.done()) node.ready()[from] = epoch;
}

void on_reform(Node& node, PeerIndex from, ByteView bytes) {
  auto& reform = *node.reform();
  // A malformed message changes nothing and is counted by the state machine.
  (void)reform.message(node.process_ids()[from], bytes, monotonic_now());
  flush_reform_sends(node);  // answers and relayed rosters are due even while nothing runs here
  const bool idle = node.topology_known();
  if (idle) {
    auto result = reform.take_result();
    if (result && !result->ok()) {
      node.removed() = result->status();
      node.engine().stop_all_groups(node.removed(), monotonic_now());
    }
  }
  if (reform.wanted() && node.removed().ok()) {
    // What all have nearly done may end well: who was quicker has sent all its part before it began to re-form.
    const auto now = monotonic_now();
    const auto by = now + node.options().reform_timeout.count() * millisecond / 2;
    node.engine().wind_down(from, {Code::peer_lost, "another member re-forms the group; call reform()"}, by, now);
  }
}

void install_handlers(Node& node) {
  auto& engine = node.engine();
  engine.on_control([&node](PeerIndex from, ByteView message) {
    if (message.empty() || from >= node.process_ids().size()) return;
    const auto kind = static_cast<ControlKind>(message.front());
    if (kind == ControlKind::topology) on_topology(node, message.subspan(1));
    if (kind == ControlKind::ready) on_ready(node, from, message.subspan(1));
    if (kind == ControlKind::reform && node.reform() != nullptr) on_reform(node, from, message.subspan(1));
  });
  engine.on_lost([&node](PeerIndex peer, const Status&) {
    if (node.reform() != nullptr) node.reform()->peer_lost(node.process_ids()[peer], monotonic_now());
  });
  engine.on_removed([&node](PeerIndex by) {
    const auto at = std::find(node.peers().begin(), node.peers().end(), by);
    const auto who = at == node.peers().end() ? std::string("a member") : label(node.roster().members[static_cast<size_t>(at - node.peers().begin())]);
    node.removed() = Status(Code::peer_lost, "this process was removed from the group: " + who + " and others re-formed it without this rank, which had not answered in time");
    node.engine().stop_all_groups(node.removed(), monotonic_now());
  });
}

// Starting points by the kind of links (docs/algorithms.md).
Topology initial_topology(const Node& node, uint32_t local) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  Topology topology;
  topology.inside = node.options().transport == "tcp" ? loopback_tcp_profile(cores) : shared_memory_profile(cores);
  topology.between = network_tcp_profile(cores);
  (void)local;
  return topology;
}

}  // namespace

Status link_up(Node& node, Nanos deadline) {
  return node.locked([&]() -> Status {
    auto& roster = node.roster();
    std::vector<PeerIndex> peers;
    for (const auto& member : roster.members) {
      if (member.id == node.self()) {
        peers.push_back(self_peer);
        continue;
      }
      const auto& ids = node.process_ids();
      const auto known = std::find(ids.begin(), ids.end(), member.id);
      if (known != ids.end()) {
        peers.push_back(static_cast<PeerIndex>(known - ids.begin()));
        continue;
      }
      peers.push_back(node.add_process(member.id));
      auto status = start_link(node, member, peers.back(), deadline);
      if (!status.ok()) return status;
    }
    node.peers() = peers;
    return {};
  });
}

Status wait_for_links(Node& node, Nanos deadline) {
  Status failed;
  const auto ready = [&] {
    failed = trouble(node);
    if (!failed.ok()) return true;
    return std::all_of(node.peers().begin(), node.peers().end(), [&](PeerIndex peer) { return peer == self_peer || is_up(node, peer); });
  };
  if (node.wait(ready, deadline + second) || !failed.ok()) return failed;
  return {Code::late, "links to the other members are not up in time"};
}

// Rank 0: until all have said that they are ready, then tells them.
static Status lead_agreement(Node& node, Nanos deadline) {
  Status failed;
  std::string missing;
  const auto ready = [&] {
    failed = trouble(node);
    if (!failed.ok()) return true;
    missing.clear();
    for (Rank rank = 0; rank < node.peers().size(); ++rank) {
      const auto said = node.ready().find(node.peers()[rank]);
      const bool here = node.peers()[rank] == self_peer || (said != node.ready().end() && said->second == node.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(node.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!node.wait(ready, deadline)) return {Code::late, "not ready in time: " + missing};
  if (!failed.ok()) return failed;
  node.locked([&] {
    const auto topology = initial_topology(node, local_world(node.roster(), 0));
    node.engine().set_topology(topology);
    for (const auto peer : node.peers()) {
      if (peer == self_peer) continue;
      ByteWriter message;
      message.write(ControlKind::topology).write(topology.inside).write(topology.between);
      node.engine().send_control(peer, std::move(message).take());
    }
    node.topology_known() = true;
  });
  return {};
}

Status agree_on_topology(Node& node, Nanos deadline) {
  if (node.locked([&] { return node.peers()[0] == self_peer; })) return lead_agreement(node, deadline);
  node.locked([&] {
    ByteWriter message;
    message.write(ControlKind::ready).write(node.roster().epoch);
    node.engine().send_control(node.peers()[0], std::move(message).take());
  });
  Status failed;
  const auto known = [&] {
    failed = trouble(node);
    return node.topology_known() || !failed.ok();
  };
  if (!node.wait(known, deadline)) return {Code::late, "rank 0 has not sent the group's parameters in time"};
  return node.locked([&] { return node.topology_known() ? Status() : failed; });
}

Result<std::shared_ptr<Node>> join_node(const ResolvedOptions& options) {
  const auto deadline = monotonic_now() + options.join_timeout.count() * millisecond;
  const auto self = random_peer_id();
  if (!self) return self.status();
  auto links = make_links(options, *self);
  if (!links) return links.status();
  std::vector<std::string> endpoints;
  for (const auto& link : *links) {
    for (auto& endpoint : link.connector->endpoints()) endpoints.push_back(std::move(endpoint));
  }
  auto session = RendezvousSession::make(options, *self, std::move(endpoints));
  if (!session) return session.status();
  auto roster = (*session)->meet(deadline);
  if (!roster) return roster.status();
  const auto rank = roster->rank_of(*self);
  if (!rank) return Status(Code::internal, "the rendezvous gave a roster without this process");
  for (auto& link : *links) link.connector->set_job(roster->key);
  auto made = Node::make(options, *self, std::move(*links));
  if (!made) return made.status();
  auto& node = **made;
  node.locked([&] {
    node.set_session(std::move(*session));
    node.roster() = *roster;
    node.reform() = std::make_unique<Reform>(*roster, *self);
    node.set_local_world(local_world(*roster, *rank));
    install_handlers(node);
  });
  auto status = link_up(node, deadline);
  if (status.ok()) status = wait_for_links(node, deadline);
  if (status.ok()) status = agree_on_topology(node, deadline);
  if (!status.ok()) return status;
  node.start_background();
  return made;
}

}  // namespace unisono

#include "group/lifecycle/joining.h"

#include <algorithm>
#include <string_view>

#include "base/random.h"
#include "group/lifecycle/agreement.h"
#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/reforming.h"
#include "group/lifecycle/tuning_file.h"
#include "transports/shm/shm_transport.h"
#include "transports/tcp/tcp_transport.h"
#include "transports/udp/udp_transport.h"

namespace unisono {
namespace {

// The same in each run of a job, and another on each rank. A process that joins a running group has no rank yet.
uint64_t loss_seed(const ResolvedOptions& options, PeerId self) {
  uint64_t seed = options.join_running ? mix64(self.low ^ self.high) : options.rank;
  for (const char c : options.job) seed = mix64(seed ^ static_cast<unsigned char>(c));
  return seed;
}

// Applies the tuning file. Each process decides on its own connections; rank 0 decides on schedules
// (group/lifecycle/agreement).
Result<ResolvedOptions> tuned(ResolvedOptions options) {
  if (options.tuning_file.empty()) return options;
  const auto tuning = read_tuning(options.tuning_file);
  if (!tuning) return tuning.status();
  options.tuning = tuning->of(options.transport);
  if (options.streams_per_link == 0) options.streams_per_link = tuning->streams_per_link;
  return options;
}

Result<std::vector<Link>> make_links(const ResolvedOptions& options, PeerId self) {
  std::vector<Link> links;
  if (options.transport == "udp") {
    UdpOptions udp;
    udp.self = self;
    udp.interface = options.interface;
    udp.payload_checksum = options.payload_checksum;
    udp.clock = monotonic_now;
    udp.rate_limit = uint64_t{options.rate_limit_mbps} * (1'000'000 / 8);
    udp.auth = options.datagram_auth;
    udp.loss = {.per_mille = options.lose_per_mille, .seed = loss_seed(options, self)};
    auto made = UdpTransport::make(udp);
    if (!made) return made.status();
    auto* connector = made->get();
    links.push_back({std::move(*made), connector});
    return links;
  }
  if (options.transport != "tcp") {
    // Few slots: with slices of 256 KiB, what is on its way to one peer stays in the caches.
    auto shm = ShmTransport::make({.self = self, .slots_per_peer = 8, .payload_checksum = options.payload_checksum});
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

Status start_link(GuardedState& guarded, const MemberRecord& member, PeerIndex peer, Nanos deadline) {
  std::string known;
  for (const auto& endpoint : member.endpoints) known += (known.empty() ? "" : ", ") + endpoint;
  for (auto& link : guarded.members.links()) {
    auto endpoints = usable(*link.connector, member.endpoints);
    if (endpoints.empty()) continue;
    guarded.engine.add_peer(peer, *link.transport, place_of(member));
    return link.connector->add_peer({.peer = peer,
                                     .id = member.id,
                                     .label = place_of(member),
                                     .endpoints = std::move(endpoints),
                                     .dial = guarded.members.self() > member.id,
                                     .deadline = deadline});
  }
  return {Code::unavailable, label(member) + " cannot be reached: it offers " + (known.empty() ? "no endpoints" : known) +
                                 "; this process uses transport " + guarded.options.transport};
}

bool is_up(GuardedState& guarded, PeerIndex peer) {
  return std::any_of(guarded.members.links().begin(), guarded.members.links().end(),
                     [&](const Link& link) { return link.connector->state(peer) == LinkState::up; });
}

void on_reform(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  auto& reform = *guarded.members.reform();
  // A malformed message changes nothing and is counted by the state machine.
  (void)reform.message(guarded.members.process_ids()[from], bytes, monotonic_now());
  flush_reform_sends(guarded);  // answers and relayed rosters are due even while nothing runs here
  const bool idle = guarded.members.topology_known();
  if (idle) {
    auto result = reform.take_result();
    if (result && !result->ok()) {
      guarded.members.set_removed(result->status());
      guarded.engine.stop_all_groups(guarded.members.removed(), monotonic_now());
    }
  }
  if (reform.wanted() && guarded.members.removed().ok()) {
    // An operation that all have nearly done may still end well: a quicker member sent all its part before it began to re-form.
    // Where a link has several streams, or is of datagrams, this message may have overtaken that part, so all may wait for it,
    // but not as long.
    const auto now = monotonic_now();
    const auto patience = guarded.options.reform_timeout.count() * millisecond;
    const auto link = std::ranges::find_if(guarded.members.links(),
                                           [&](const Link& each) { return each.connector->state(from) == LinkState::up; });
    const bool in_order = guarded.options.streams_per_link <= 1 && link != guarded.members.links().end() &&
                          link->transport->datagrams() == nullptr;
    guarded.engine.drain(in_order ? from : self_peer, {Code::peer_lost, "another member re-forms the group; call reform()"},
                         now + (in_order ? patience / 2 : patience / 4), now);
  }
}

void install_handlers(GuardedState& guarded) {
  auto& engine = guarded.engine;
  engine.on_control([&guarded](PeerIndex from, ByteView message) {
    if (message.empty() || from >= guarded.members.process_ids().size()) return;
    const auto kind = static_cast<ControlKind>(message.front());
    on_agreement_message(guarded, from, message);
    if (kind == ControlKind::reform && guarded.members.reform() != nullptr) on_reform(guarded, from, message.subspan(1));
  });
  engine.on_lost([&guarded](PeerIndex peer, const Status&) {
    if (guarded.members.reform() != nullptr)
      guarded.members.reform()->peer_lost(guarded.members.process_ids()[peer], monotonic_now());
  });
  engine.on_removed([&guarded](PeerIndex by) {
    const auto* member = guarded.members.record_of(by);
    const auto remover = member == nullptr ? std::string("a member") : label(*member);
    guarded.members.set_removed(
        Status(Code::peer_lost, "this process was removed from the group: " + remover +
                                    " and others re-formed it without this rank, which had not answered in time"));
    guarded.engine.stop_all_groups(guarded.members.removed(), monotonic_now());
  });
}

}  // namespace

Status link_up(Runtime& runtime, Nanos deadline) {
  return runtime.locked([&](GuardedState& guarded) -> Status {
    auto& roster = guarded.members.roster();
    std::vector<PeerIndex> peers;
    for (const auto& member : roster.members) {
      if (member.id == guarded.members.self()) {
        peers.push_back(self_peer);
        continue;
      }
      const auto& ids = guarded.members.process_ids();
      const auto known = std::find(ids.begin(), ids.end(), member.id);
      if (known != ids.end()) {
        peers.push_back(static_cast<PeerIndex>(known - ids.begin()));
        continue;
      }
      peers.push_back(guarded.members.add_process(member.id));
      auto status = start_link(guarded, member, peers.back(), deadline);
      if (!status.ok()) return status;
    }
    guarded.members.set_peers(std::move(peers));
    return {};
  });
}

Status wait_for_links(Runtime& runtime, Nanos deadline) {
  Status failed;
  const auto ready = [&](GuardedState& guarded) {
    failed = trouble(guarded);
    if (!failed.ok()) return true;
    return std::all_of(guarded.members.peers().begin(), guarded.members.peers().end(),
                       [&](PeerIndex peer) { return peer == self_peer || is_up(guarded, peer); });
  };
  if (runtime.wait(ready, deadline + second) || !failed.ok()) return failed;
  return {Code::late, "links to the other members are not up in time"};
}

Result<std::shared_ptr<Runtime>> join_runtime(const ResolvedOptions& given) {
  const auto deadline = monotonic_now() + given.join_timeout.count() * millisecond;
  const auto with_tuning = tuned(given);
  if (!with_tuning) return with_tuning.status();
  const auto& options = *with_tuning;
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
  auto made = Runtime::make(options, *self, std::move(*links));
  if (!made) return made.status();
  auto& runtime = **made;
  runtime.locked([&](GuardedState& guarded) {
    guarded.members.join(std::move(*session), *roster);
    guarded.set_local_world(ranks_beside(*roster, *rank));
    install_handlers(guarded);
  });
  auto status = link_up(runtime, deadline);
  if (status.ok()) status = wait_for_links(runtime, deadline);
  if (status.ok()) status = agree_on_topology(runtime, deadline, Measuring::always);
  if (!status.ok()) return status;
  runtime.start_background();
  return made;
}

}  // namespace unisono

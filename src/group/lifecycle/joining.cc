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

// The same in each run of a job, and another on each rank. Who joins a running group has no rank yet.
uint64_t loss_seed(const ResolvedOptions& options, PeerId self) {
  uint64_t seed = options.join_running ? mix64(self.low ^ self.high) : options.rank;
  for (const char c : options.job) seed = mix64(seed ^ static_cast<unsigned char>(c));
  return seed;
}

// The connections of a link are the business of who makes them; schedules are rank 0's (group/lifecycle/agreement).
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

Status start_link(Runtime& runtime, const MemberRecord& member, PeerIndex peer, Nanos deadline) {
  std::string known;
  for (const auto& endpoint : member.endpoints) known += (known.empty() ? "" : ", ") + endpoint;
  for (auto& link : runtime.links()) {
    auto endpoints = usable(*link.connector, member.endpoints);
    if (endpoints.empty()) continue;
    runtime.engine().add_peer(peer, *link.transport, place_of(member));
    return link.connector->add_peer({.peer = peer,
                                     .id = member.id,
                                     .label = place_of(member),
                                     .endpoints = std::move(endpoints),
                                     .dial = runtime.self() > member.id,
                                     .deadline = deadline});
  }
  return {Code::unavailable, label(member) + " cannot be reached: it offers " + (known.empty() ? "no endpoints" : known) +
                                 "; this process uses transport " + runtime.options().transport};
}

bool is_up(Runtime& runtime, PeerIndex peer) {
  return std::any_of(runtime.links().begin(), runtime.links().end(),
                     [&](Link& link) { return link.connector->state(peer) == LinkState::up; });
}

void on_reform(Runtime& runtime, PeerIndex from, ByteView bytes) {
  auto& reform = *runtime.reform();
  // A malformed message changes nothing and is counted by the state machine.
  (void)reform.message(runtime.process_ids()[from], bytes, monotonic_now());
  flush_reform_sends(runtime);  // answers and relayed rosters are due even while nothing runs here
  const bool idle = runtime.topology_known();
  if (idle) {
    auto result = reform.take_result();
    if (result && !result->ok()) {
      runtime.removed() = result->status();
      runtime.engine().stop_all_groups(runtime.removed(), monotonic_now());
    }
  }
  if (reform.wanted() && runtime.removed().ok()) {
    // What all have nearly done may end well: who was quicker has sent all its part before it began to re-form.
    // Where a link has several streams, or is of datagrams, this news may have overtaken that part, so all may wait for it, but
    // not as long.
    const auto now = monotonic_now();
    const auto patience = runtime.options().reform_timeout.count() * millisecond;
    const auto link =
        std::ranges::find_if(runtime.links(), [&](const Link& each) { return each.connector->state(from) == LinkState::up; });
    const bool in_order =
        runtime.options().streams_per_link <= 1 && link != runtime.links().end() && link->transport->datagrams() == nullptr;
    runtime.engine().drain(in_order ? from : self_peer, {Code::peer_lost, "another member re-forms the group; call reform()"},
                           now + (in_order ? patience / 2 : patience / 4), now);
  }
}

void install_handlers(Runtime& runtime) {
  auto& engine = runtime.engine();
  engine.on_control([&runtime](PeerIndex from, ByteView message) {
    if (message.empty() || from >= runtime.process_ids().size()) return;
    const auto kind = static_cast<ControlKind>(message.front());
    hear_agreement(runtime, from, message);
    if (kind == ControlKind::reform && runtime.reform() != nullptr) on_reform(runtime, from, message.subspan(1));
  });
  engine.on_lost([&runtime](PeerIndex peer, const Status&) {
    if (runtime.reform() != nullptr) runtime.reform()->peer_lost(runtime.process_ids()[peer], monotonic_now());
  });
  engine.on_removed([&runtime](PeerIndex by) {
    const auto at = std::find(runtime.peers().begin(), runtime.peers().end(), by);
    const auto who = at == runtime.peers().end()
                         ? std::string("a member")
                         : label(runtime.roster().members[static_cast<size_t>(at - runtime.peers().begin())]);
    runtime.removed() =
        Status(Code::peer_lost, "this process was removed from the group: " + who +
                                    " and others re-formed it without this rank, which had not answered in time");
    runtime.engine().stop_all_groups(runtime.removed(), monotonic_now());
  });
}

}  // namespace

Status link_up(Runtime& runtime, Nanos deadline) {
  return runtime.locked([&]() -> Status {
    auto& roster = runtime.roster();
    std::vector<PeerIndex> peers;
    for (const auto& member : roster.members) {
      if (member.id == runtime.self()) {
        peers.push_back(self_peer);
        continue;
      }
      const auto& ids = runtime.process_ids();
      const auto known = std::find(ids.begin(), ids.end(), member.id);
      if (known != ids.end()) {
        peers.push_back(static_cast<PeerIndex>(known - ids.begin()));
        continue;
      }
      peers.push_back(runtime.add_process(member.id));
      auto status = start_link(runtime, member, peers.back(), deadline);
      if (!status.ok()) return status;
    }
    runtime.peers() = peers;
    return {};
  });
}

Status wait_for_links(Runtime& runtime, Nanos deadline) {
  Status failed;
  const auto ready = [&] {
    failed = trouble(runtime);
    if (!failed.ok()) return true;
    return std::all_of(runtime.peers().begin(), runtime.peers().end(),
                       [&](PeerIndex peer) { return peer == self_peer || is_up(runtime, peer); });
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
  runtime.locked([&] {
    runtime.set_session(std::move(*session));
    runtime.roster() = *roster;
    runtime.reform() = std::make_unique<Reform>(*roster, *self);
    runtime.set_local_world(ranks_beside(*roster, *rank));
    install_handlers(runtime);
  });
  auto status = link_up(runtime, deadline);
  if (status.ok()) status = wait_for_links(runtime, deadline);
  if (status.ok()) status = agree_on_topology(runtime, deadline, Measuring::always);
  if (!status.ok()) return status;
  runtime.start_background();
  return made;
}

}  // namespace unisono

#include "group/lifecycle/joining.h"

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "base/concat.h"
#include "base/random.h"
#include "events/event_queue.h"
#include "events/process_log.h"
#include "group/lifecycle/agreement.h"
#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/reforming.h"
#include "group/lifecycle/relinking.h"
#include "group/lifecycle/reporting.h"
#include "group/lifecycle/tuning_file.h"
#include "net/socket_address.h"
#include "rendezvous/security_options.h"
#include "transports/shm/shm_transport.h"
#include "transports/tcp/tcp_transport.h"
#include "transports/udp/udp_transport.h"

static_assert(unisono::offered_addresses_max < unisono::endpoints_max, "a member also offers shared memory");

namespace unisono {
namespace {

// Returns the seed for losses that are simulated. It is the same in each run of a job, and differs between ranks. A process
// that joins a running group has no rank yet, so its seed is computed from its process id.
uint64_t loss_seed(const ResolvedOptions& options, PeerId self) {
  uint64_t seed = options.join_running ? mix64(self.low ^ self.high) : options.rank;
  for (const char c : options.job) seed = mix64(seed ^ static_cast<unsigned char>(c));
  return seed;
}

// Applies the tuning file. Its connection settings are used in this process only. Its schedule settings are used only if this
// is rank 0, which sends them to all ranks (group/lifecycle/agreement).
Result<ResolvedOptions> tuned(ResolvedOptions options) {
  if (options.tuning_file.empty()) return options;
  const auto tuning = read_tuning(options.tuning_file);
  if (!tuning) return tuning.status();
  options.tuning = tuning->of(options.transport);
  if (options.streams_per_link == 0) options.streams_per_link = tuning->streams_per_link;
  return options;
}

// Returns where the transports of this process listen. If the processes meet at a loopback address or at a file, all of them
// are on this host, so nobody else needs the ports. (Processes with networks of their own may share a file: they say which
// interface they use.)
std::string listening_interface(const ResolvedOptions& options) {
  if (!options.interface.empty() || !is_on_this_host(options.rendezvous)) return options.interface;
  return options.rendezvous.host.starts_with("::") ? options.rendezvous.host : "127.0.0.1";
}

Result<std::vector<Link>> make_links(const ResolvedOptions& options, PeerId self,
                                     const std::shared_ptr<const TlsContext>& tls) {
  const auto interface = listening_interface(options);
  std::vector<Link> links;
  if (options.transport == "udp") {
    UdpOptions udp;
    udp.self = self;
    udp.interface = interface;
    udp.payload_checksum = options.payload_checksum;
    udp.clock = monotonic_now;
    udp.rate_limit = uint64_t{options.rate_limit_mbps} * (1'000'000 / 8);
    udp.auth = options.datagram_auth;
    udp.tls = tls;
    udp.silence = options.link_timeout.count() * millisecond;
    udp.loss = {.per_mille = options.lose_per_mille, .seed = loss_seed(options, self)};
    auto made = UdpTransport::make(udp);
    if (!made) return made.status();
    auto* connector = made->get();
    links.push_back({std::move(*made), connector});
    return links;
  }
  if (options.transport != "tcp") {
    // Use only 8 slots. A slice (the data in one slot) has 256 KiB. So the data that is on its way to one peer fits into the
    // CPU caches.
    auto shm = ShmTransport::make(
        {.self = self, .slots_per_peer = 8, .payload_checksum = options.payload_checksum, .same_user = tls != nullptr});
    if (!shm) return shm.status();
    auto* connector = shm->get();
    links.push_back({std::move(*shm), connector});
  }
  if (options.transport != "shm") {
    TcpOptions tcp;
    tcp.self = self;
    tcp.interface = interface;
    tcp.tls = tls;
    tcp.streams = std::max(1u, options.streams_per_link);
    tcp.payload_checksum = options.payload_checksum;
    tcp.link.link_timeout = options.link_timeout.count() * millisecond;
    tcp.link.resend_memory = options.resend_memory_per_link;
    process_resend_memory().set_limit(options.resend_memory);
    auto made = TcpTransport::make(tcp);
    if (!made) return made.status();
    auto* connector = made->get();
    links.push_back({std::move(*made), connector});
  }
  return links;
}

std::string_view scheme_of(std::string_view endpoint) { return endpoint.substr(0, endpoint.find("://")); }

// Returns the part of an endpoint up to its last slash. In an shm endpoint, this part says on which host the shared memory is.
std::string_view host_part(std::string_view endpoint) { return endpoint.substr(0, endpoint.rfind('/') + 1); }

bool is_loopback_endpoint(const std::string& endpoint) {
  if (scheme_of(endpoint) == "shm") return false;
  const auto address = parse_tcp_endpoint("tcp://" + endpoint.substr(scheme_of(endpoint).size() + 3));
  return address.ok() && address->is_loopback();
}

using Endpoints = std::vector<std::string>;

// Returns those endpoints of the other process that the transport with the endpoints `ours` can use. They must be of the same
// kind as its own, and shm endpoints must also be on the same host.
Endpoints usable(const Endpoints& ours, const Endpoints& theirs) {
  Endpoints result;
  for (const auto& endpoint : theirs) {
    const bool fits = std::any_of(ours.begin(), ours.end(), [&](const std::string& own) {
      if (scheme_of(own) != scheme_of(endpoint)) return false;
      return scheme_of(own) != "shm" || host_part(own) == host_part(endpoint);
    });
    if (fits) result.push_back(endpoint);
  }
  return result;
}

bool is_up(GuardedState& guarded, PeerIndex peer) {
  return std::any_of(guarded.members.links().begin(), guarded.members.links().end(),
                     [&](const Link& link) { return link.connector->state(peer) == LinkState::up; });
}

void on_reform(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  auto& reform = *guarded.members.reform();
  // The status is ignored: a malformed message changes nothing, and the state machine counts such messages.
  (void)reform.message(guarded.members.process_ids()[from], bytes, monotonic_now());
  flush_reform_sends(guarded);  // Send answers, and rosters that are passed on, even if no operation runs.
  const bool idle = guarded.members.topology_known();
  if (idle) {
    auto result = reform.take_result();
    if (result && !result->ok()) {
      guarded.members.set_removed(result->status());
      guarded.engine.stop_all_groups(guarded.members.removed(), monotonic_now());
    }
  }
  if (reform.requested_by_peer() && guarded.members.removed().ok()) {
    // The member `from` re-forms the group. It has sent all its data for those operations that it completed. Therefore an
    // operation that needs no more data from this member may still succeed; the others end at once. If a link has several
    // streams or carries datagrams, this message may have overtaken data of the member. In that case no operation ends at once,
    // but all of them get less time.
    const auto now = monotonic_now();
    const auto reform_timeout = guarded.options.reform_timeout.count() * millisecond;
    const auto link = std::ranges::find_if(guarded.members.links(),
                                           [&](const Link& each) { return each.connector->state(from) == LinkState::up; });
    const bool in_order = guarded.options.streams_per_link <= 1 && link != guarded.members.links().end() &&
                          link->transport->datagrams() == nullptr;
    guarded.engine.drain(in_order ? from : self_peer, {Code::peer_lost, "another member re-forms the group; call reform()"},
                         now + (in_order ? reform_timeout / 2 : reform_timeout / 4), now);
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
  engine.on_lost([&guarded](PeerIndex peer, const Status& why, PeerFate fate) {
    const auto* member = guarded.members.record_of(peer);
    if (member != nullptr) report_event(guarded, EventKind::link_lost, peer, label(*member) + ": " + why.message());
    on_link_lost(guarded, peer, fate, monotonic_now());
  });
  engine.on_noticed([&guarded](PeerIndex peer, EventKind kind, const std::string& text) {
    const auto* member = guarded.members.record_of(peer);
    report_event(guarded, kind, peer, (member == nullptr ? std::string("a process") : label(*member)) + ": " + text);
  });
  engine.on_removed([&guarded](PeerIndex by) {
    // A part of a split group that has ended learns later that the other part goes on. Callers go on getting the first reason.
    if (!guarded.members.removed().ok()) return;
    const auto* member = guarded.members.record_of(by);
    const auto remover = member == nullptr ? std::string("a member") : label(*member);
    guarded.members.set_removed(
        Status(Code::peer_lost, "this process was removed from the group: " + remover +
                                    " and others re-formed it without this rank, which had not answered in time"));
    guarded.engine.stop_all_groups(guarded.members.removed(), monotonic_now());
  });
}

// All links of this member are up. From now on it dials (start_link), so it needs no listening sockets.
void stop_listening(Runtime& runtime) {
  runtime.locked([](GuardedState& guarded) {
    for (auto& link : guarded.members.links()) link.connector->stop_listening();
  });
}

// The group cannot form, because this member or another one has failed. Tells the other members, and returns the first failure.
Status end_formation(Runtime& runtime, const Status& why) {
  return runtime.locked([&](GuardedState& guarded) { return guarded.members.session()->failed(why); });
}

}  // namespace

Status start_link(GuardedState& guarded, Rank rank, PeerIndex peer, Nanos deadline, LinkPurpose purpose) {
  const auto& roster = guarded.members.roster();
  const auto& member = roster.members[rank];
  const auto& own = roster.members[roster.rank_of(guarded.members.self()).value_or(rank)];
  std::string known;
  for (const auto& endpoint : member.endpoints) known += (known.empty() ? "" : ", ") + endpoint;
  for (const auto& link : guarded.members.links()) {
    auto endpoints = usable(link.connector->endpoints(), member.endpoints);
    if (endpoints.empty()) continue;
    if (!same_host(member, own) && std::ranges::all_of(endpoints, is_loopback_endpoint)) {
      return {Code::unavailable, label(member) + " listens at a loopback address only, because the processes meet at " +
                                     guarded.options.rendezvous.to_string() +
                                     ", and it is not in this process's network: set UNISONO_INTERFACE for all processes"};
    }
    const auto status = link.connector->add_peer({.peer = peer,
                                                  .id = member.id,
                                                  .label = host_label(member),
                                                  .endpoints = std::move(endpoints),
                                                  .dial = own.rank < rank,
                                                  .deadline = deadline,
                                                  .fail_if_refused = purpose == LinkPurpose::anew});
    if (status.ok() || purpose == LinkPurpose::first) guarded.engine.add_peer(peer, *link.transport, host_label(member));
    return status;
  }
  return {Code::unavailable, label(member) + " cannot be reached: it offers " + (known.empty() ? "no endpoints" : known) +
                                 "; this process uses transport " + guarded.options.transport};
}

Status link_up(Runtime& runtime, Nanos deadline) {
  return runtime.locked([&](GuardedState& guarded) -> Status {
    auto& roster = guarded.members.roster();
    std::vector<PeerIndex> peers;
    for (Rank rank = 0; rank < roster.members.size(); ++rank) {
      const auto& member = roster.members[rank];
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
      auto status = start_link(guarded, rank, peers.back(), deadline, LinkPurpose::first);
      if (!status.ok()) return status;
    }
    guarded.members.set_peers(std::move(peers));
    return {};
  });
}

Status wait_for_links(Runtime& runtime, Nanos deadline) {
  Status failed;
  const auto is_missing = [](GuardedState& guarded, PeerIndex peer) { return peer != self_peer && !is_up(guarded, peer); };
  const auto ready = [&](GuardedState& guarded) {
    failed = group_error(guarded);
    if (!failed.ok()) return true;
    return std::ranges::none_of(guarded.members.peers(), [&](PeerIndex peer) { return is_missing(guarded, peer); });
  };
  if (runtime.wait(ready, deadline + second) || !failed.ok()) return failed;
  std::string missing;
  runtime.locked([&](GuardedState& guarded) {
    const auto& peers = guarded.members.peers();
    for (size_t rank = 0; rank < peers.size(); ++rank) {
      if (is_missing(guarded, peers[rank]))
        missing += concat(missing.empty() ? "" : ", ", label(guarded.members.roster().members[rank]));
    }
  });
  return {Code::late, "the links to these members did not come up in time: " + missing};
}

// Reports an event of a process that waits for the others, so that there is no group yet.
static void report_refusal(const ResolvedOptions& options, const std::string& text) {
  Status problem;  // the group reports it
  EventQueue events(options.on_event, &process_log(options.log, monotonic_now, problem));
  events.set_source(label({.id = {}, .rank = options.rank, .host = this_host_name(), .pid = getpid(), .endpoints = {}}));
  events.add(EventKind::refused, -1, "the rendezvous has refused a process: " + text);
  events.deliver();
}

struct Met {
  std::vector<Link> links;
  std::unique_ptr<RendezvousSession> session;
  Roster roster;
};

// Makes the links, and meets the other ranks. Sets `tell` if it fails for a reason that the others cannot know.
static Result<Met> try_to_meet(const ResolvedOptions& options, PeerId self, const std::shared_ptr<const TlsContext>& tls,
                               Nanos deadline, bool& tell) {
  tell = true;
  auto links = make_links(options, self, tls);
  if (!links) return links.status();
  std::vector<std::string> endpoints;
  for (const auto& link : *links) {
    for (auto& endpoint : link.connector->endpoints()) endpoints.push_back(std::move(endpoint));
  }
  auto session = RendezvousSession::make(options, self, std::move(endpoints), tls);
  if (!session) return session.status();
  (*session)->on_refusal([&options](const std::string& text) { report_refusal(options, text); });
  auto roster = (*session)->meet(deadline);
  (*session)->on_refusal({});
  tell = !roster.ok() && (*session)->lacks_descriptors();
  if (!roster) return roster.status();
  return Met{std::move(*links), std::move(*session), std::move(*roster)};
}

// If this process cannot meet the others, it first frees what it has made for that. A descriptor may then be free, with which
// it can tell them why they would wait in vain.
static Result<Met> meet(const ResolvedOptions& options, PeerId self, Nanos deadline) {
  const auto tls = load_tls(options.key);
  if (!tls) return tls.status();
  bool tell = false;
  auto met = try_to_meet(options, self, *tls, deadline, tell);
  if (!met && tell && met.status().code() == Code::unavailable)
    RendezvousSession::tell_failure(options, self, met.status(), *tls);
  return met;
}

Result<std::shared_ptr<Runtime>> join_runtime(const ResolvedOptions& given) {
  const auto deadline = monotonic_now() + given.join_timeout.count() * millisecond;
  const auto with_tuning = tuned(given);
  if (!with_tuning) return with_tuning.status();
  const auto& options = *with_tuning;
  const auto self = random_peer_id();
  if (!self) return self.status();
  auto met = meet(options, *self, deadline);
  if (!met) return met.status();
  auto& [links, session, roster] = *met;
  const auto rank = roster.rank_of(*self);
  if (!rank) return Status(Code::internal, "the rendezvous gave a roster without this process");
  for (auto& link : links) link.connector->set_job(roster.key);
  auto made = Runtime::make(options, *self, std::move(links));
  if (!made) return session->failed(made.status());
  auto& runtime = **made;
  runtime.locked([&](GuardedState& guarded) {
    guarded.members.join(std::move(met->session), met->roster);
    guarded.members.session()->on_refusal([&guarded](const std::string& text) {
      report_event(guarded, EventKind::refused, self_peer, "the rendezvous has refused a process: " + text);
    });
    guarded.set_local_world(ranks_beside(guarded.members.roster(), *rank));
    install_handlers(guarded);
  });
  auto status = link_up(runtime, deadline);
  if (status.ok()) status = wait_for_links(runtime, deadline);
  if (status.ok()) stop_listening(runtime);
  if (status.ok()) status = agree_on_topology(runtime, deadline, Measuring::always);
  if (!status.ok()) return end_formation(runtime, status);
  runtime.locked([](GuardedState& guarded) {
    guarded.members.session()->joined();
    report_unprotected(guarded);
  });
  runtime.start_background();
  return made;
}

}  // namespace unisono

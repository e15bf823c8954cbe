#include "group/lifecycle/agreement.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/concat.h"
#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/link_survey.h"
#include "rendezvous/rendezvous_socket.h"
#include "wire/siphash.h"

namespace unisono {
namespace {

// The longest wait for probes of the path MTU. If they take longer, datagrams stay small.
constexpr Nanos probing_max = second;
// Measuring links may use at most 1 / deadline_part of the time that is left until the deadline.
constexpr int deadline_part = 4;

// The data that all members need to exchange datagrams. Rank 0 decides it: the size (0: no datagrams are sent), the
// authentication, and a key for this epoch.
struct DatagramTerms {
  uint32_t bytes = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};

// Returns a number that identifies the job. It is the same in all epochs of the job. Only members can compute it, because it
// depends on the roster's key.
uint64_t run_id_of(GuardedState& guarded) {
  SipKey key;
  std::memcpy(&key, guarded.members.roster().key.data(), sizeof(key));
  return siphash_2_4(key, std::as_bytes(std::span("run", 3)));
}

// Waits until the transports know how large the datagrams on their paths may be.
void wait_for_probes(Runtime& runtime, Nanos deadline) {
  (void)runtime.wait(
      [&](GuardedState& guarded) { return guarded.members.datagram_bytes_known() || !group_error(guarded).ok(); },
      std::min(deadline, monotonic_now() + probing_max));
}

void set_datagram_terms(GuardedState& guarded, const DatagramTerms& terms) {
  std::optional<DatagramSecret> secret;
  if (terms.bytes > 0)
    secret = {.run_id = run_id_of(guarded), .key = terms.key, .auth = terms.auth, .datagram_bytes = terms.bytes};
  guarded.engine.set_datagrams(secret);
}

void on_topology(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  if (guarded.members.peers().empty() || from != guarded.members.peers()[0]) return;
  ByteReader reader(bytes);
  DatagramTerms terms;
  terms.bytes = reader.read<uint32_t>();
  terms.auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  for (auto& byte : terms.key) byte = reader.read<std::byte>();
  if (!reader.ok() || terms.bytes > guarded.members.datagram_bytes() || terms.auth > guarded.options.datagram_auth) return;
  auto topology = decode_topology(bytes.last(reader.left()));
  if (!topology) return;
  set_datagram_terms(guarded, terms);
  guarded.apply_topology(*topology);
  ByteWriter message;
  message.write(ControlKind::confirmed).write(guarded.members.roster().epoch);
  guarded.engine.send_control(from, std::move(message).take());
}

void on_confirmed(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>();
  if (reader.done()) guarded.members.set_confirmed(from, epoch);
}

void on_ready(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>(), datagram_bytes = reader.read<uint32_t>();
  const auto auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  if (reader.done() && auth <= DatagramAuth::checksum)
    guarded.members.set_ready(from, {.epoch = epoch, .datagram_bytes = datagram_bytes, .auth = auth});
}

// Rank 0 calls this when all members are ready.
Result<DatagramTerms> choose_terms(GuardedState& guarded) {
  // The group uses the strongest authentication that any member asks for. It uses checksums only if all members accept them.
  DatagramTerms terms{.bytes = guarded.members.datagram_bytes(), .auth = guarded.options.datagram_auth, .key = {}};
  for (const auto peer : guarded.members.peers()) {
    if (peer == self_peer) continue;
    const auto* readiness = guarded.members.ready(peer);
    terms.bytes = std::min(terms.bytes, readiness == nullptr ? 0 : readiness->datagram_bytes);
    terms.auth = std::min(terms.auth, readiness == nullptr ? DatagramAuth::mac : readiness->auth);
  }
  const auto random = random_peer_id();
  if (!random) return random.status();
  std::memcpy(terms.key.data(), &*random, sizeof(terms.key));
  return terms;
}

// Used on rank 0: waits until all members have reported that they are ready.
Status wait_for_all(Runtime& runtime, Nanos deadline) {
  Status failed;
  std::string missing;
  const auto ready = [&](GuardedState& guarded) {
    failed = group_error(guarded);
    if (!failed.ok()) return true;
    missing.clear();
    for (Rank rank = 0; rank < guarded.members.peers().size(); ++rank) {
      const auto* readiness = guarded.members.ready(guarded.members.peers()[rank]);
      const bool here = guarded.members.peers()[rank] == self_peer ||
                        (readiness != nullptr && readiness->epoch == guarded.members.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(guarded.members.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!runtime.wait(ready, deadline)) return {Code::late, "these members did not become ready in time: " + missing};
  return failed;
}

// Returns the topology for a group that no new process has joined. It consists of the old measurements between those hosts that
// are still in the roster.
Topology known_topology(GuardedState& guarded) {
  auto topology = guarded.engine.topology();
  topology.links = guarded.members.known_links(topology.links);
  topology.inside.host_groups_sharing = topology.between.host_groups_sharing = hosts_per_machine(guarded.members.roster());
  return topology;
}

// Used on rank 0 when it has sent the topology: waits until all members have got it. Otherwise rank 0 could have a group that
// the others have not. What it sent may wait behind the measurements, on a path that drops large packets.
Status wait_for_confirmations(Runtime& runtime, Nanos deadline) {
  Status failed;
  std::string missing;
  const auto confirmed = [&](GuardedState& guarded) {
    failed = guarded.members.session()->formation_error();
    missing.clear();
    for (Rank rank = 0; rank < guarded.members.peers().size() && failed.ok(); ++rank) {
      const auto peer = guarded.members.peers()[rank];
      const auto* readiness = guarded.members.ready(peer);
      // A member that has confirmed may already have left the group.
      if (peer == self_peer || (readiness != nullptr && readiness->confirmed)) continue;
      const auto& status = guarded.engine.peer_status(peer);
      if (!status.ok()) failed = {status.code(), concat("rank ", rank, ", ", status.message())};
      missing += concat(missing.empty() ? "" : ", ", label(guarded.members.roster().members[rank]), " (",
                        guarded.engine.describe_link(peer), ")");
    }
    return missing.empty() || !failed.ok();
  };
  if (runtime.wait(confirmed, deadline)) return failed;
  return {Code::late, "these members did not confirm the group's parameters in time: " + missing};
}

Status lead(Runtime& runtime, Nanos deadline, Measuring measuring) {
  if (auto status = wait_for_all(runtime, deadline); !status.ok()) return status;
  wait_for_probes(runtime, deadline);
  const auto now = monotonic_now();
  const bool measures = measuring == Measuring::always;
  const auto topology = measures ? survey_links(runtime, now + std::max<Nanos>(0, (deadline - now) / deadline_part))
                                 : runtime.locked([&](GuardedState& guarded) { return known_topology(guarded); });
  const auto sent = runtime.locked([&](GuardedState& guarded) {
    if (auto status = group_error(guarded); !status.ok()) return status;
    const auto terms = choose_terms(guarded);
    if (!terms) return terms.status();
    set_datagram_terms(guarded, *terms);
    guarded.apply_topology(topology);
    for (const auto peer : guarded.members.peers()) {
      if (peer == self_peer) continue;
      ByteWriter writer;
      writer.write(ControlKind::topology).write(terms->bytes).write(terms->auth);
      for (const auto byte : terms->key) writer.write(byte);
      auto message = std::move(writer).take();
      const auto encoded = encode(topology);
      message.insert(message.end(), encoded.begin(), encoded.end());
      guarded.engine.send_control(peer, std::move(message));
    }
    return Status();
  });
  if (!sent.ok() || !measures) return sent;
  // Rank 0 gives up before the others do, because it can say why. The rendezvous tells them.
  const auto later = monotonic_now();
  return wait_for_confirmations(runtime, later + std::max<Nanos>(0, (deadline - later) / 2));
}

Status follow(Runtime& runtime, Nanos deadline) {
  wait_for_probes(runtime, deadline);
  runtime.locked([&](GuardedState& guarded) {
    ByteWriter message;
    message.write(ControlKind::ready)
        .write(guarded.members.roster().epoch)
        .write(guarded.members.datagram_bytes())
        .write(guarded.options.datagram_auth);
    guarded.engine.send_control(guarded.members.peers()[0], std::move(message).take());
  });
  // A lost link to a member other than rank 0 does not matter here, because that member may already have received the decision
  // and left. If the link to rank 0 is lost, the cause is usually the loss of another member. If there is such a member, the
  // error names it instead of rank 0.
  Status failed;
  const auto known = [&](GuardedState& guarded) {
    failed = guarded.engine.peer_status(guarded.members.peers()[0]).ok() ? reform_error(guarded) : group_error(guarded, 1);
    return guarded.members.topology_known() || !failed.ok();
  };
  if (!serve_survey(runtime, known, deadline)) return {Code::late, "rank 0 has not sent the group's parameters in time"};
  return runtime.locked([&](GuardedState& guarded) { return guarded.members.topology_known() ? Status() : failed; });
}

// Returns why another member could not join, if the rendezvous has said so.
Status formation_error(GuardedState& guarded) {
  const auto* session = guarded.members.session();
  return session == nullptr ? Status() : session->formation_error();
}

}  // namespace

Status group_error(GuardedState& guarded, Rank first) {
  if (auto status = formation_error(guarded); !status.ok()) return status;
  const auto world = static_cast<Rank>(guarded.members.peers().size());
  for (Rank i = 0; i < world; ++i) {
    const auto rank = (first + i) % world;
    if (guarded.members.peers()[rank] == self_peer) continue;
    const auto& status = guarded.engine.peer_status(guarded.members.peers()[rank]);
    if (!status.ok()) return {status.code(), concat("rank ", rank, ", ", status.message())};
  }
  return reform_error(guarded);
}

Status reform_error(GuardedState& guarded) {
  if (auto status = formation_error(guarded); !status.ok()) return status;
  if (!guarded.members.removed().ok()) return guarded.members.removed();
  const bool requested_by_peer = guarded.members.reform() != nullptr && guarded.members.reform()->requested_by_peer();
  if (requested_by_peer) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

void on_agreement_message(GuardedState& guarded, PeerIndex from, ByteView message) {
  const auto kind = static_cast<ControlKind>(message.front());
  if (kind == ControlKind::topology) on_topology(guarded, from, message.subspan(1));
  if (kind == ControlKind::ready) on_ready(guarded, from, message.subspan(1));
  if (kind == ControlKind::confirmed) on_confirmed(guarded, from, message.subspan(1));
  on_survey_message(guarded, from, message);
}

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring) {
  const bool leads = runtime.locked([&](GuardedState& guarded) { return guarded.members.peers()[0] == self_peer; });
  auto status = leads ? lead(runtime, deadline, measuring) : follow(runtime, deadline);
  if (!status.ok()) return status;
  runtime.locked([](GuardedState& guarded) {
    for (auto& link : guarded.members.links()) link.connector->members_linked();
  });
  return status;
}

}  // namespace unisono

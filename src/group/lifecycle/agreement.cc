#include "group/lifecycle/agreement.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "group/lifecycle/control_kind.h"
#include "group/lifecycle/link_survey.h"
#include "rendezvous/rendezvous_socket.h"
#include "wire/siphash.h"

namespace unisono {
namespace {

constexpr Nanos probing_max = second;  // datagrams are short where it takes longer
constexpr int deadline_part = 4;       // of the time that is left, for measuring: links are not worth missing a deadline

// Rank 0 decides these terms of datagrams: their size (0: no datagrams), their authentication, and a key for this epoch.
struct DatagramTerms {
  uint32_t bytes = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};

// Names the job to its members only; the same in all epochs.
uint64_t run_id_of(GuardedState& guarded) {
  SipKey key;
  std::memcpy(&key, guarded.members.roster().key.data(), sizeof(key));
  return siphash_2_4(key, std::as_bytes(std::span("run", 3)));
}

// Datagrams are as long as the group's paths carry them when it begins.
void wait_for_probes(Runtime& runtime, Nanos deadline) {
  (void)runtime.wait([&](GuardedState& guarded) { return guarded.members.datagram_bytes_known() || !trouble(guarded).ok(); },
                     std::min(deadline, monotonic_now() + probing_max));
}

void know_terms(GuardedState& guarded, const DatagramTerms& terms) {
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
  know_terms(guarded, terms);
  guarded.know_topology(*topology);
}

void on_ready(GuardedState& guarded, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>(), datagram_bytes = reader.read<uint32_t>();
  const auto auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  if (reader.done() && auth <= DatagramAuth::checksum)
    guarded.members.set_ready(from, {.epoch = epoch, .datagram_bytes = datagram_bytes, .auth = auth});
}

// Rank 0, when all are ready.
Result<DatagramTerms> choose_terms(GuardedState& guarded) {
  // Checksums are enough only if they are enough for all.
  DatagramTerms terms{.bytes = guarded.members.datagram_bytes(), .auth = guarded.options.datagram_auth, .key = {}};
  for (const auto peer : guarded.members.peers()) {
    if (peer == self_peer) continue;
    const auto* said = guarded.members.ready(peer);
    terms.bytes = std::min(terms.bytes, said == nullptr ? 0 : said->datagram_bytes);
    terms.auth = std::min(terms.auth, said == nullptr ? DatagramAuth::mac : said->auth);
  }
  const auto random = random_peer_id();
  if (!random) return random.status();
  std::memcpy(terms.key.data(), &*random, sizeof(terms.key));
  return terms;
}

// Rank 0: until all have said that they are ready.
Status wait_for_all(Runtime& runtime, Nanos deadline) {
  Status failed;
  std::string missing;
  const auto ready = [&](GuardedState& guarded) {
    failed = trouble(guarded);
    if (!failed.ok()) return true;
    missing.clear();
    for (Rank rank = 0; rank < guarded.members.peers().size(); ++rank) {
      const auto* said = guarded.members.ready(guarded.members.peers()[rank]);
      const bool here =
          guarded.members.peers()[rank] == self_peer || (said != nullptr && said->epoch == guarded.members.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(guarded.members.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!runtime.wait(ready, deadline)) return {Code::late, "not ready in time: " + missing};
  return failed;
}

// Where nobody has joined, what was measured for the hosts that are still there.
Topology known_topology(GuardedState& guarded) {
  auto topology = guarded.engine.topology();
  topology.links = guarded.members.known_links(topology.links);
  topology.inside.host_groups_sharing = topology.between.host_groups_sharing = hosts_per_machine(guarded.members.roster());
  return topology;
}

Status lead(Runtime& runtime, Nanos deadline, Measuring measuring) {
  if (auto status = wait_for_all(runtime, deadline); !status.ok()) return status;
  wait_for_probes(runtime, deadline);
  const auto now = monotonic_now();
  const bool measures = measuring == Measuring::always;
  const auto topology = measures ? survey_links(runtime, now + std::max<Nanos>(0, (deadline - now) / deadline_part))
                                 : runtime.locked([&](GuardedState& guarded) { return known_topology(guarded); });
  return runtime.locked([&](GuardedState& guarded) {
    if (auto status = trouble(guarded); !status.ok()) return status;
    const auto terms = choose_terms(guarded);
    if (!terms) return terms.status();
    know_terms(guarded, *terms);
    guarded.know_topology(topology);
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
  // Rank 0 decides by what it sees of the others. A member that has its decision may have left before this process receives it,
  // so lost links to others do not count. If rank 0 is gone, another member was most often the reason: that one is named.
  Status failed;
  const auto known = [&](GuardedState& guarded) {
    failed = guarded.engine.peer_status(guarded.members.peers()[0]).ok() ? own_trouble(guarded) : trouble(guarded, 1);
    return guarded.members.topology_known() || !failed.ok();
  };
  if (!serve_survey(runtime, known, deadline)) return {Code::late, "rank 0 has not sent the group's parameters in time"};
  return runtime.locked([&](GuardedState& guarded) { return guarded.members.topology_known() ? Status() : failed; });
}

}  // namespace

Status trouble(GuardedState& guarded, Rank first) {
  const auto world = static_cast<Rank>(guarded.members.peers().size());
  for (Rank i = 0; i < world; ++i) {
    const auto rank = (first + i) % world;
    if (guarded.members.peers()[rank] == self_peer) continue;
    const auto& status = guarded.engine.peer_status(guarded.members.peers()[rank]);
    if (!status.ok()) return {status.code(), "rank " + std::to_string(rank) + ", " + status.message()};
  }
  return own_trouble(guarded);
}

Status own_trouble(GuardedState& guarded) {
  if (!guarded.members.removed().ok()) return guarded.members.removed();
  const bool wanted = guarded.members.reform() != nullptr && guarded.members.reform()->wanted();
  if (wanted) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

void on_agreement_message(GuardedState& guarded, PeerIndex from, ByteView message) {
  const auto kind = static_cast<ControlKind>(message.front());
  if (kind == ControlKind::topology) on_topology(guarded, from, message.subspan(1));
  if (kind == ControlKind::ready) on_ready(guarded, from, message.subspan(1));
  on_survey_message(guarded, from, message);
}

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring) {
  const bool leads = runtime.locked([&](GuardedState& guarded) { return guarded.members.peers()[0] == self_peer; });
  return leads ? lead(runtime, deadline, measuring) : follow(runtime, deadline);
}

}  // namespace unisono

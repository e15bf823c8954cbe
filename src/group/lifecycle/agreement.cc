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
constexpr int deadline_part = 4;  // of the time that is left, for measuring: links are not worth missing a deadline

// What rank 0 decides about datagrams: how large they are, 0 where there are none, how they are authenticated, and a key for this epoch.
struct DatagramTerms {
  uint32_t bytes = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};

// Of the job, known to its members only; the same in all epochs.
uint64_t run_id_of(Node& node) {
  SipKey key;
  std::memcpy(&key, node.roster().key.data(), sizeof(key));
  return siphash_2_4(key, std::as_bytes(std::span("run", 3)));
}

// Datagrams are as long as the group's paths carry them when it begins.
void wait_for_probes(Node& node, Nanos deadline) {
  (void)node.wait([&] { return node.datagram_bytes_known() || !trouble(node).ok(); }, std::min(deadline, monotonic_now() + probing_max));
}

void know_terms(Node& node, const DatagramTerms& terms) {
  std::optional<DatagramSecret> secret;
  if (terms.bytes > 0) secret = {.run_id = run_id_of(node), .key = terms.key, .auth = terms.auth, .datagram_bytes = terms.bytes};
  node.engine().set_datagrams(secret);
}

void on_topology(Node& node, PeerIndex from, ByteView bytes) {
  if (node.peers().empty() || from != node.peers()[0]) return;
  ByteReader reader(bytes);
  DatagramTerms terms;
  terms.bytes = reader.read<uint32_t>();
  terms.auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  for (auto& byte : terms.key) byte = reader.read<std::byte>();
  if (!reader.ok() || terms.bytes > node.datagram_bytes() || terms.auth > node.options().datagram_auth) return;
  auto topology = decode_topology(bytes.last(reader.left()));
  if (!topology) return;
  know_terms(node, terms);
  node.know_topology(*topology);
}

void on_ready(Node& node, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>(), datagram_bytes = reader.read<uint32_t>();
  const auto auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  if (reader.done() && auth <= DatagramAuth::checksum) node.ready()[from] = {.epoch = epoch, .datagram_bytes = datagram_bytes, .auth = auth};
}

// Rank 0, when all are ready.
Result<DatagramTerms> choose_terms(Node& node) {
  // Checksums are for who is content with them: all, or none.
  DatagramTerms terms{.bytes = node.datagram_bytes(), .auth = node.options().datagram_auth, .key = {}};
  for (const auto peer : node.peers()) {
    if (peer == self_peer) continue;
    const auto& said = node.ready()[peer];
    terms.bytes = std::min(terms.bytes, said.datagram_bytes);
    terms.auth = std::min(terms.auth, said.auth);
  }
  const auto random = random_peer_id();
  if (!random) return random.status();
  std::memcpy(terms.key.data(), &*random, sizeof(terms.key));
  return terms;
}

// Rank 0: until all have said that they are ready.
Status wait_for_all(Node& node, Nanos deadline) {
  Status failed;
  std::string missing;
  const auto ready = [&] {
    failed = trouble(node);
    if (!failed.ok()) return true;
    missing.clear();
    for (Rank rank = 0; rank < node.peers().size(); ++rank) {
      const auto said = node.ready().find(node.peers()[rank]);
      const bool here = node.peers()[rank] == self_peer || (said != node.ready().end() && said->second.epoch == node.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(node.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!node.wait(ready, deadline)) return {Code::late, "not ready in time: " + missing};
  return failed;
}

// Where nobody has joined, what was measured for the hosts that are still there.
Topology known_topology(Node& node) {
  auto topology = node.engine().topology();
  topology.links = node.known_links();
  topology.inside.islands_sharing = topology.between.islands_sharing = hosts_per_machine(node.roster());
  return topology;
}

Status lead(Node& node, Nanos deadline, Measuring measuring) {
  if (auto status = wait_for_all(node, deadline); !status.ok()) return status;
  wait_for_probes(node, deadline);
  const auto now = monotonic_now();
  const bool measures = measuring == Measuring::always;
  const auto topology = measures ? survey_links(node, now + std::max<Nanos>(0, (deadline - now) / deadline_part))
                                 : node.locked([&] { return known_topology(node); });
  return node.locked([&] {
    if (auto status = trouble(node); !status.ok()) return status;
    const auto terms = choose_terms(node);
    if (!terms) return terms.status();
    know_terms(node, *terms);
    node.know_topology(topology);
    for (const auto peer : node.peers()) {
      if (peer == self_peer) continue;
      ByteWriter writer;
      writer.write(ControlKind::topology).write(terms->bytes).write(terms->auth);
      for (const auto byte : terms->key) writer.write(byte);
      auto message = std::move(writer).take();
      const auto encoded = encode(topology);
      message.insert(message.end(), encoded.begin(), encoded.end());
      node.engine().send_control(peer, std::move(message));
    }
    return Status();
  });
}

Status follow(Node& node, Nanos deadline) {
  wait_for_probes(node, deadline);
  node.locked([&] {
    ByteWriter message;
    message.write(ControlKind::ready).write(node.roster().epoch).write(node.datagram_bytes()).write(node.options().datagram_auth);
    node.engine().send_control(node.peers()[0], std::move(message).take());
  });
  // Rank 0 hears what becomes of the others, and who has heard it may have left again before this process hears it. When rank 0 is gone, it is for
  // another's sake more often than not.
  Status failed;
  const auto known = [&] {
    failed = node.engine().peer_status(node.peers()[0]).ok() ? own_trouble(node) : trouble(node, 1);
    return node.topology_known() || !failed.ok();
  };
  if (!serve_survey(node, known, deadline)) return {Code::late, "rank 0 has not sent the group's parameters in time"};
  return node.locked([&] { return node.topology_known() ? Status() : failed; });
}

}  // namespace

Status trouble(Node& node, Rank first) {
  const auto world = static_cast<Rank>(node.peers().size());
  for (Rank i = 0; i < world; ++i) {
    const auto rank = (first + i) % world;
    if (node.peers()[rank] == self_peer) continue;
    const auto& status = node.engine().peer_status(node.peers()[rank]);
    if (!status.ok()) return {status.code(), "rank " + std::to_string(rank) + ", " + status.message()};
  }
  return own_trouble(node);
}

Status own_trouble(Node& node) {
  if (!node.removed().ok()) return node.removed();
  const bool wanted = node.reform() != nullptr && node.reform()->wanted();
  if (wanted) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

void hear_agreement(Node& node, PeerIndex from, ByteView message) {
  const auto kind = static_cast<ControlKind>(message.front());
  if (kind == ControlKind::topology) on_topology(node, from, message.subspan(1));
  if (kind == ControlKind::ready) on_ready(node, from, message.subspan(1));
  hear_survey(node, from, message);
}

Status agree_on_topology(Node& node, Nanos deadline, Measuring measuring) {
  const bool leads = node.locked([&] { return node.peers()[0] == self_peer; });
  return leads ? lead(node, deadline, measuring) : follow(node, deadline);
}

}  // namespace unisono

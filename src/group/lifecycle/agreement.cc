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

// What rank 0 decides about datagrams: how large they are, 0 where there are none, how they are authenticated, and a key for
// this epoch.
struct DatagramTerms {
  uint32_t bytes = 0;
  DatagramAuth auth = DatagramAuth::mac;
  GroupKey key{};
};

// Of the job, known to its members only; the same in all epochs.
uint64_t run_id_of(Runtime& runtime) {
  SipKey key;
  std::memcpy(&key, runtime.roster().key.data(), sizeof(key));
  return siphash_2_4(key, std::as_bytes(std::span("run", 3)));
}

// Datagrams are as long as the group's paths carry them when it begins.
void wait_for_probes(Runtime& runtime, Nanos deadline) {
  (void)runtime.wait([&] { return runtime.datagram_bytes_known() || !trouble(runtime).ok(); },
                     std::min(deadline, monotonic_now() + probing_max));
}

void know_terms(Runtime& runtime, const DatagramTerms& terms) {
  std::optional<DatagramSecret> secret;
  if (terms.bytes > 0)
    secret = {.run_id = run_id_of(runtime), .key = terms.key, .auth = terms.auth, .datagram_bytes = terms.bytes};
  runtime.engine().set_datagrams(secret);
}

void on_topology(Runtime& runtime, PeerIndex from, ByteView bytes) {
  if (runtime.peers().empty() || from != runtime.peers()[0]) return;
  ByteReader reader(bytes);
  DatagramTerms terms;
  terms.bytes = reader.read<uint32_t>();
  terms.auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  for (auto& byte : terms.key) byte = reader.read<std::byte>();
  if (!reader.ok() || terms.bytes > runtime.datagram_bytes() || terms.auth > runtime.options().datagram_auth) return;
  auto topology = decode_topology(bytes.last(reader.left()));
  if (!topology) return;
  know_terms(runtime, terms);
  runtime.know_topology(*topology);
}

void on_ready(Runtime& runtime, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>(), datagram_bytes = reader.read<uint32_t>();
  const auto auth = static_cast<DatagramAuth>(reader.read<uint8_t>());
  if (reader.done() && auth <= DatagramAuth::checksum)
    runtime.ready()[from] = {.epoch = epoch, .datagram_bytes = datagram_bytes, .auth = auth};
}

// Rank 0, when all are ready.
Result<DatagramTerms> choose_terms(Runtime& runtime) {
  // Checksums are for who is content with them: all, or none.
  DatagramTerms terms{.bytes = runtime.datagram_bytes(), .auth = runtime.options().datagram_auth, .key = {}};
  for (const auto peer : runtime.peers()) {
    if (peer == self_peer) continue;
    const auto& said = runtime.ready()[peer];
    terms.bytes = std::min(terms.bytes, said.datagram_bytes);
    terms.auth = std::min(terms.auth, said.auth);
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
  const auto ready = [&] {
    failed = trouble(runtime);
    if (!failed.ok()) return true;
    missing.clear();
    for (Rank rank = 0; rank < runtime.peers().size(); ++rank) {
      const auto said = runtime.ready().find(runtime.peers()[rank]);
      const bool here =
          runtime.peers()[rank] == self_peer || (said != runtime.ready().end() && said->second.epoch == runtime.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(runtime.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!runtime.wait(ready, deadline)) return {Code::late, "not ready in time: " + missing};
  return failed;
}

// Where nobody has joined, what was measured for the hosts that are still there.
Topology known_topology(Runtime& runtime) {
  auto topology = runtime.engine().topology();
  topology.links = runtime.known_links();
  topology.inside.host_groups_sharing = topology.between.host_groups_sharing = hosts_per_machine(runtime.roster());
  return topology;
}

Status lead(Runtime& runtime, Nanos deadline, Measuring measuring) {
  if (auto status = wait_for_all(runtime, deadline); !status.ok()) return status;
  wait_for_probes(runtime, deadline);
  const auto now = monotonic_now();
  const bool measures = measuring == Measuring::always;
  const auto topology = measures ? survey_links(runtime, now + std::max<Nanos>(0, (deadline - now) / deadline_part))
                                 : runtime.locked([&] { return known_topology(runtime); });
  return runtime.locked([&] {
    if (auto status = trouble(runtime); !status.ok()) return status;
    const auto terms = choose_terms(runtime);
    if (!terms) return terms.status();
    know_terms(runtime, *terms);
    runtime.know_topology(topology);
    for (const auto peer : runtime.peers()) {
      if (peer == self_peer) continue;
      ByteWriter writer;
      writer.write(ControlKind::topology).write(terms->bytes).write(terms->auth);
      for (const auto byte : terms->key) writer.write(byte);
      auto message = std::move(writer).take();
      const auto encoded = encode(topology);
      message.insert(message.end(), encoded.begin(), encoded.end());
      runtime.engine().send_control(peer, std::move(message));
    }
    return Status();
  });
}

Status follow(Runtime& runtime, Nanos deadline) {
  wait_for_probes(runtime, deadline);
  runtime.locked([&] {
    ByteWriter message;
    message.write(ControlKind::ready)
        .write(runtime.roster().epoch)
        .write(runtime.datagram_bytes())
        .write(runtime.options().datagram_auth);
    runtime.engine().send_control(runtime.peers()[0], std::move(message).take());
  });
  // Rank 0 hears what becomes of the others, and who has heard it may have left again before this process hears it. When rank 0
  // is gone, it is for another's sake more often than not.
  Status failed;
  const auto known = [&] {
    failed = runtime.engine().peer_status(runtime.peers()[0]).ok() ? own_trouble(runtime) : trouble(runtime, 1);
    return runtime.topology_known() || !failed.ok();
  };
  if (!serve_survey(runtime, known, deadline)) return {Code::late, "rank 0 has not sent the group's parameters in time"};
  return runtime.locked([&] { return runtime.topology_known() ? Status() : failed; });
}

}  // namespace

Status trouble(Runtime& runtime, Rank first) {
  const auto world = static_cast<Rank>(runtime.peers().size());
  for (Rank i = 0; i < world; ++i) {
    const auto rank = (first + i) % world;
    if (runtime.peers()[rank] == self_peer) continue;
    const auto& status = runtime.engine().peer_status(runtime.peers()[rank]);
    if (!status.ok()) return {status.code(), "rank " + std::to_string(rank) + ", " + status.message()};
  }
  return own_trouble(runtime);
}

Status own_trouble(Runtime& runtime) {
  if (!runtime.removed().ok()) return runtime.removed();
  const bool wanted = runtime.reform() != nullptr && runtime.reform()->wanted();
  if (wanted) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

void hear_agreement(Runtime& runtime, PeerIndex from, ByteView message) {
  const auto kind = static_cast<ControlKind>(message.front());
  if (kind == ControlKind::topology) on_topology(runtime, from, message.subspan(1));
  if (kind == ControlKind::ready) on_ready(runtime, from, message.subspan(1));
  hear_survey(runtime, from, message);
}

Status agree_on_topology(Runtime& runtime, Nanos deadline, Measuring measuring) {
  const bool leads = runtime.locked([&] { return runtime.peers()[0] == self_peer; });
  return leads ? lead(runtime, deadline, measuring) : follow(runtime, deadline);
}

}  // namespace unisono

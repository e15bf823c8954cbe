#include "node/agreement.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>

#include "node/control_kind.h"

namespace unisono {
namespace {

constexpr int deadline_part = 4;  // of the time that is left, for each measurement: links are not worth missing a deadline

void on_topology(Node& node, ByteView bytes) {
  auto topology = decode_topology(bytes);
  if (!topology) return;
  node.engine().set_topology(*topology);
  node.topology_known() = true;
}

void on_ready(Node& node, PeerIndex from, ByteView bytes) {
  ByteReader reader(bytes);
  const auto epoch = reader.read<uint32_t>();
  if (reader.done()) node.ready()[from] = epoch;
}

// Starting points by the kind of links (docs/algorithms.md).
Topology initial_topology(const Node& node) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  return {.inside = node.options().transport == "tcp" ? loopback_tcp_profile(cores) : shared_memory_profile(cores),
          .between = network_tcp_profile(cores)};
}

void flush_probe(Node& node) {
  while (auto question = node.probe()->probe.take_question()) {
    for (uint32_t i = 0; i < question->times; ++i) node.engine().send_control(node.probe()->peer, question->message);
  }
}

// The first other member on this host, or on another one; self_peer if there is none.
PeerIndex first_peer(Node& node, bool on_this_host) {
  const auto& members = node.roster().members;
  for (Rank rank = 1; rank < members.size(); ++rank) {
    if ((members[rank].host == members[0].host) == on_this_host) return node.peers()[rank];
  }
  return self_peer;
}

// Unmeasured if the peer does not answer, or is lost; then the agreement itself says so.
LinkMeasurement measure_link(Node& node, PeerIndex peer, Nanos deadline) {
  if (peer == self_peer) return {};
  Nanos wake = 0;
  node.locked([&] {
    const auto now = monotonic_now();
    const auto until = now + std::max<Nanos>(0, (deadline - now) / deadline_part);
    node.probe().emplace(ProbedLink{.peer = peer, .probe = LinkProbe(node.next_probe(), now, until)});
    flush_probe(node);
    wake = node.probe()->probe.next_deadline();
  });
  LinkMeasurement found;
  bool over = false;
  while (!over) {
    node.wait([&] { return node.probe()->probe.next_deadline() != wake || !node.engine().peer_status(peer).ok(); }, wake);
    node.locked([&] {
      auto& probe = node.probe()->probe;
      probe.woke(monotonic_now());
      wake = probe.next_deadline();
      found = probe.result();
      over = probe.done() || !node.engine().peer_status(peer).ok();
      if (over) node.probe().reset();
    });
  }
  return found;
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
      const bool here = node.peers()[rank] == self_peer || (said != node.ready().end() && said->second == node.roster().epoch);
      if (!here) missing += (missing.empty() ? "" : ", ") + label(node.roster().members[rank]);
    }
    return missing.empty();
  };
  if (!node.wait(ready, deadline)) return {Code::late, "not ready in time: " + missing};
  return failed;
}

Topology measured_topology(Node& node, Nanos deadline) {
  auto topology = node.locked([&] { return initial_topology(node); });
  const auto apply = [&](bool on_this_host, LinkProfile& profile, bool& measured) {
    const auto peer = node.locked([&] { return first_peer(node, on_this_host); });
    const auto found = measure_link(node, peer, deadline);
    measured = found.measured;
    if (measured) profile = measured_profile(profile, {.latency_us = found.latency_us, .bytes_per_us = found.bytes_per_us});
  };
  apply(true, topology.inside, topology.inside_measured);
  apply(false, topology.between, topology.between_measured);
  return topology;
}

Status lead(Node& node, Nanos deadline, Measuring measuring) {
  if (auto status = wait_for_all(node, deadline); !status.ok()) return status;
  const bool measures = measuring == Measuring::always;
  const auto topology = measures ? measured_topology(node, deadline) : node.locked([&] { return node.engine().topology(); });
  return node.locked([&] {
    if (auto status = trouble(node); !status.ok()) return status;
    node.engine().set_topology(topology);
    for (const auto peer : node.peers()) {
      if (peer == self_peer) continue;
      Bytes message{static_cast<std::byte>(ControlKind::topology)};
      const auto encoded = encode(topology);
      message.insert(message.end(), encoded.begin(), encoded.end());
      node.engine().send_control(peer, std::move(message));
    }
    node.topology_known() = true;
    return Status();
  });
}

Status follow(Node& node, Nanos deadline) {
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

}  // namespace

Status trouble(Node& node) {
  for (Rank rank = 0; rank < node.peers().size(); ++rank) {
    if (node.peers()[rank] == self_peer) continue;
    const auto& status = node.engine().peer_status(node.peers()[rank]);
    if (!status.ok()) return {status.code(), "rank " + std::to_string(rank) + ", " + status.message()};
  }
  if (!node.removed().ok()) return node.removed();
  const bool wanted = node.reform() != nullptr && node.reform()->wanted();
  if (wanted) return {Code::peer_lost, "another member re-forms the group; call reform()"};
  return {};
}

void hear_agreement(Node& node, PeerIndex from, ByteView message) {
  const auto kind = static_cast<ControlKind>(message.front());
  if (kind == ControlKind::topology) on_topology(node, message.subspan(1));
  if (kind == ControlKind::ready) on_ready(node, from, message.subspan(1));
  if (kind == ControlKind::probe) {
    if (auto answer = LinkProbe::answer(message); !answer.empty()) node.engine().send_control(from, std::move(answer));
  }
  if (kind == ControlKind::probe_answer && node.probe() && node.probe()->peer == from) {
    node.probe()->probe.answered(message, monotonic_now());
    flush_probe(node);
  }
}

Status agree_on_topology(Node& node, Nanos deadline, Measuring measuring) {
  const bool leads = node.locked([&] { return node.peers()[0] == self_peer; });
  return leads ? lead(node, deadline, measuring) : follow(node, deadline);
}

}  // namespace unisono

#include "group/lifecycle/link_survey.h"

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "group/lifecycle/agreement.h"
#include "group/lifecycle/control_kind.h"

namespace unisono {
namespace {

constexpr Nanos survey_time_max = 10 * second;
constexpr Nanos round_time_max = second;  // One round of measurements may take this long. A probe normally ends sooner.

// Returns the topology before anything is measured. Each kind of link has a default profile (docs/design/schedules.md).
Topology initial_topology(GuardedState& guarded) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  Topology topology{.inside = guarded.options.transport == "tcp" || guarded.options.transport == "udp"
                                  ? loopback_tcp_profile(cores)
                                  : shared_memory_profile(cores),
                    .between = network_tcp_profile(cores)};
  // If there is no tuning file, keep the tuning that an earlier rank 0 has sent.
  topology.tuning = guarded.options.tuning.groups.empty() ? guarded.engine.topology().tuning : guarded.options.tuning;
  topology.inside.host_groups_sharing = topology.between.host_groups_sharing = hosts_per_machine(guarded.members.roster());
  return topology;
}

void flush_probe(GuardedState& guarded) {
  auto& open = *guarded.survey.probe;
  while (auto request = open.probe.take_request()) {
    for (uint32_t i = 0; i < request->times; ++i) guarded.engine.send_control(open.peer, request->message);
    open.sent = std::move(request->message);
  }
}

void begin_probe(GuardedState& guarded, PeerIndex peer, uint32_t request, LinkSpan span, Nanos until) {
  auto& survey = guarded.survey;
  guarded.members.measure_rate(peer);  // Otherwise the first bursts would show how slowly the transport begins.
  survey.probe.emplace(
      ProbedLink{.peer = peer, .request = request, .probe = LinkProbe(++survey.probes, span, monotonic_now(), until)});
  flush_probe(guarded);
}

// Tells this process's probe that time has passed. If the probe has ended, reports its result to rank 0.
void advance_probe(GuardedState& guarded) {
  auto& survey = guarded.survey;
  if (!survey.probe) return;
  survey.probe->probe.woke(monotonic_now());
  if (!survey.probe->probe.done()) return;
  const auto request = survey.probe->request;
  const auto found = survey.probe->probe.result();
  // A probe that ends at its deadline leaves a burst, behind which the group's first calls would wait.
  if (survey.probe->sent) guarded.engine.cancel_control(survey.probe->peer, survey.probe->sent);
  survey.probe.reset();
  if (guarded.members.peers()[0] == self_peer) {
    survey.results[request] = found;
    return;
  }
  ByteWriter message;
  message.write(ControlKind::measured)
      .write(request)
      .write(static_cast<uint8_t>(found.measured))
      .write(found.latency_us)
      .write(found.bytes_per_us);
  guarded.engine.send_control(guarded.members.peers()[0], std::move(message).take());
}

void on_measure(GuardedState& guarded, PeerIndex from, ByteReader& reader) {
  const auto request = reader.read<uint32_t>();
  const auto rank = reader.read<uint32_t>();
  const auto time = reader.read<int64_t>();
  const auto& peers = guarded.members.peers();
  const bool valid = reader.done() && rank < peers.size() && peers[rank] != self_peer && time > 0;
  if (!valid || from != peers[0] || guarded.members.topology_known()) return;
  begin_probe(guarded, peers[rank], request, LinkSpan::between_hosts, monotonic_now() + std::min<Nanos>(time, round_time_max));
}

void on_measured(GuardedState& guarded, ByteReader& reader) {
  const auto request = reader.read<uint32_t>();
  LinkMeasurement found;
  found.measured = reader.read<uint8_t>() != 0;
  found.latency_us = reader.read<double>();
  found.bytes_per_us = reader.read<double>();
  const bool valid =
      std::isfinite(found.latency_us) && found.latency_us >= 0 && std::isfinite(found.bytes_per_us) && found.bytes_per_us > 0;
  auto& survey = guarded.survey;
  if (!reader.done() || request < survey.first_request || request - survey.first_request >= survey.request_count) return;
  survey.results[request] = valid ? found : LinkMeasurement{};
}

struct Pair {
  uint32_t a = 0, b = 0;  // host numbers, a < b
  Rank from = 0, to = 0;  // the lowest rank on host a, and the lowest rank on host b
};

// Returns all pairs of hosts, divided into rounds. Every pair occurs once, and no host occurs twice in the same round. (The
// algorithm is the circle method for round-robin tournaments.)
std::vector<std::vector<Pair>> rounds_of(const std::vector<Rank>& leaders) {
  const auto hosts = static_cast<uint32_t>(leaders.size());
  const auto slots = hosts + hosts % 2;
  std::vector<std::vector<Pair>> rounds;
  for (uint32_t round = 0; round + 1 < slots; ++round) {
    auto& pairs = rounds.emplace_back();
    for (uint32_t i = 0; i < slots / 2; ++i) {
      const auto one = i == 0 ? slots - 1 : (round + i) % (slots - 1);
      const auto other = (round + slots - 1 - i) % (slots - 1);
      const auto a = std::min(one, other), b = std::max(one, other);
      if (b < hosts) pairs.push_back({.a = a, .b = b, .from = leaders[a], .to = leaders[b]});
    }
  }
  return rounds;
}

// Starts a round of measurements. The request numbers continue those of the previous round. Therefore an answer that belongs to
// an earlier round is recognized and ignored.
void begin_round(Survey& survey, uint32_t request_count) {
  survey.results.clear();
  survey.first_request += survey.request_count;
  survey.request_count = request_count;
}

void request_measurements(GuardedState& guarded, const std::vector<Pair>& pairs, Nanos until) {
  begin_round(guarded.survey, static_cast<uint32_t>(pairs.size()));
  auto request = guarded.survey.first_request;
  for (const auto& [a, b, from, to] : pairs) {
    const auto peer = guarded.members.peers()[from];
    if (peer == self_peer) {
      begin_probe(guarded, guarded.members.peers()[to], request++, LinkSpan::between_hosts, until);
      continue;
    }
    ByteWriter message;
    message.write(ControlKind::measure).write(request++).write(uint32_t{to}).write(int64_t{until - monotonic_now()});
    guarded.engine.send_control(peer, std::move(message).take());
  }
}

// Waits until all results of this round have arrived, or until the deadline.
void await_results(Runtime& runtime, Nanos until) {
  const auto finished = [](GuardedState& guarded) {
    return guarded.survey.results.size() == guarded.survey.request_count || !group_error(guarded).ok();
  };
  serve_survey(runtime, finished, until);
}

void measure_inside(Runtime& runtime, Topology& topology, Nanos deadline) {
  const auto until = std::min(deadline, monotonic_now() + round_time_max);
  const bool asked = runtime.locked([&](GuardedState& guarded) {
    const auto& members = guarded.members.roster().members;
    for (Rank rank = 1; rank < members.size(); ++rank) {
      if (!same_host(members[rank], members[0])) continue;
      begin_round(guarded.survey, 1);
      begin_probe(guarded, guarded.members.peers()[rank], guarded.survey.first_request, LinkSpan::inside_host, until);
      return true;
    }
    return false;
  });
  if (!asked) return;
  await_results(runtime, until);
  const auto found =
      runtime.locked([&](GuardedState& guarded) { return guarded.survey.results[guarded.survey.first_request]; });
  topology.inside_measured = found.measured;
  if (found.measured)
    topology.inside = measured_profile(topology.inside, {.latency_us = found.latency_us, .bytes_per_us = found.bytes_per_us});
}

void measure_between(Runtime& runtime, Topology& topology, Nanos deadline) {
  const auto leaders = runtime.locked([&](GuardedState& guarded) { return hosts_of(guarded.members.roster()); });
  const bool all = leaders.size() <= linked_hosts_max;
  auto rounds = rounds_of(leaders);
  if (!all) rounds = {{{.a = 0, .b = 1, .from = leaders[0], .to = leaders[1]}}};
  if (all) topology.links = HostLinks(static_cast<uint32_t>(leaders.size()));
  std::vector<double> latencies, rates;
  for (const auto& pairs : rounds) {
    const auto until = std::min(deadline, monotonic_now() + round_time_max);
    if (pairs.empty() || monotonic_now() >= deadline) continue;
    runtime.locked([&](GuardedState& guarded) { request_measurements(guarded, pairs, until); });
    await_results(runtime, until);
    runtime.locked([&](GuardedState& guarded) {
      for (const auto& [request, found] : guarded.survey.results) {
        if (!found.measured) continue;
        latencies.push_back(found.latency_us);
        rates.push_back(found.bytes_per_us);
        const auto& pair = pairs[request - guarded.survey.first_request];
        if (all) topology.links.between(pair.a, pair.b) = {.latency_us = found.latency_us, .bytes_per_us = found.bytes_per_us};
      }
    });
  }
  topology.between_measured = !rates.empty();
  if (!rates.empty())
    topology.between = measured_profile(topology.between, {.latency_us = median(latencies), .bytes_per_us = median(rates)});
}

}  // namespace

bool serve_survey(Runtime& runtime, const Runtime::Done& finished, Nanos deadline) {
  const auto next = [&](const GuardedState& guarded) {
    const auto& open = guarded.survey.probe;
    return open ? std::min(deadline, open->probe.next_deadline()) : deadline;
  };
  while (true) {
    Nanos wake = deadline;
    const bool done = runtime.locked([&](GuardedState& guarded) {
      advance_probe(guarded);
      wake = next(guarded);
      return finished(guarded);
    });
    if (done) return true;
    if (monotonic_now() >= deadline) return false;
    runtime.wait(
        [&](GuardedState& guarded) {
          return finished(guarded) || next(guarded) != wake || (guarded.survey.probe && guarded.survey.probe->probe.done());
        },
        wake);
  }
}

Topology survey_links(Runtime& runtime, Nanos deadline) {
  const auto until = std::min(deadline, monotonic_now() + survey_time_max);
  auto topology = runtime.locked([&](GuardedState& guarded) { return initial_topology(guarded); });
  measure_inside(runtime, topology, until);
  measure_between(runtime, topology, until);
  runtime.locked([&](GuardedState& guarded) { begin_round(guarded.survey, 0); });
  return topology;
}

void on_survey_message(GuardedState& guarded, PeerIndex from, ByteView message) {
  ByteReader reader(message);
  const auto kind = reader.read<ControlKind>();
  if (kind == ControlKind::measure) on_measure(guarded, from, reader);
  if (kind == ControlKind::measured) on_measured(guarded, reader);
  if (kind == ControlKind::probe) {
    if (auto answer = LinkProbe::answer(message); !answer.empty()) guarded.engine.send_control(from, std::move(answer));
  }
  auto& open = guarded.survey.probe;
  if (kind == ControlKind::probe_answer && open && open->peer == from) {
    open->probe.on_answer(message, monotonic_now());
    flush_probe(guarded);
  }
}

}  // namespace unisono

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
constexpr Nanos round_time_max = second;  // a probe ends sooner by itself

// Starting points by the kind of links (docs/design/schedules.md).
Topology initial_topology(GuardedState& guarded) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  Topology topology{.inside = guarded.options.transport == "tcp" || guarded.options.transport == "udp"
                                  ? loopback_tcp_profile(cores)
                                  : shared_memory_profile(cores),
                    .between = network_tcp_profile(cores)};
  // The tuning of a file that this process has read, or of an earlier rank 0.
  topology.tuning = guarded.options.tuning.groups.empty() ? guarded.engine.topology().tuning : guarded.options.tuning;
  topology.inside.host_groups_sharing = topology.between.host_groups_sharing = hosts_per_machine(guarded.members.roster());
  return topology;
}

void flush_probe(GuardedState& guarded) {
  auto& open = *guarded.survey.probe;
  while (auto question = open.probe.take_question()) {
    for (uint32_t i = 0; i < question->times; ++i) guarded.engine.send_control(open.peer, question->message);
  }
}

void begin_probe(GuardedState& guarded, PeerIndex peer, uint32_t order, LinkSpan span, Nanos until) {
  auto& survey = guarded.survey;
  survey.probe.emplace(
      ProbedLink{.peer = peer, .order = order, .probe = LinkProbe(++survey.probes, span, monotonic_now(), until)});
  flush_probe(guarded);
}

// Reports a probe that has ended to rank 0.
void advance_probe(GuardedState& guarded) {
  auto& survey = guarded.survey;
  if (!survey.probe) return;
  survey.probe->probe.woke(monotonic_now());
  if (!survey.probe->probe.done()) return;
  const auto order = survey.probe->order;
  const auto found = survey.probe->probe.result();
  survey.probe.reset();
  if (guarded.members.peers()[0] == self_peer) {
    survey.results[order] = found;
    return;
  }
  ByteWriter message;
  message.write(ControlKind::measured)
      .write(order)
      .write(static_cast<uint8_t>(found.measured))
      .write(found.latency_us)
      .write(found.bytes_per_us);
  guarded.engine.send_control(guarded.members.peers()[0], std::move(message).take());
}

void on_measure(GuardedState& guarded, PeerIndex from, ByteReader& reader) {
  const auto order = reader.read<uint32_t>();
  const auto rank = reader.read<uint32_t>();
  const auto time = reader.read<int64_t>();
  const auto& peers = guarded.members.peers();
  const bool sound = reader.done() && rank < peers.size() && peers[rank] != self_peer && time > 0;
  if (!sound || from != peers[0] || guarded.members.topology_known()) return;
  begin_probe(guarded, peers[rank], order, LinkSpan::between_hosts, monotonic_now() + std::min<Nanos>(time, round_time_max));
}

void on_measured(GuardedState& guarded, ByteReader& reader) {
  const auto order = reader.read<uint32_t>();
  LinkMeasurement found;
  found.measured = reader.read<uint8_t>() != 0;
  found.latency_us = reader.read<double>();
  found.bytes_per_us = reader.read<double>();
  const bool sound =
      std::isfinite(found.latency_us) && found.latency_us >= 0 && std::isfinite(found.bytes_per_us) && found.bytes_per_us > 0;
  auto& survey = guarded.survey;
  if (!reader.done() || order < survey.first_order || order - survey.first_order >= survey.orders) return;
  survey.results[order] = sound ? found : LinkMeasurement{};
}

struct Pair {
  uint32_t a = 0, b = 0;  // hosts, a < b
  Rank from = 0, to = 0;  // the ranks that stand for them
};

// Every pair once, in rounds in which no host takes part twice: one host stays, the others turn around the table.
std::vector<std::vector<Pair>> rounds_of(const std::vector<Rank>& leaders) {
  const auto hosts = static_cast<uint32_t>(leaders.size());
  const auto seats = hosts + hosts % 2;
  std::vector<std::vector<Pair>> rounds;
  for (uint32_t round = 0; round + 1 < seats; ++round) {
    auto& pairs = rounds.emplace_back();
    for (uint32_t i = 0; i < seats / 2; ++i) {
      const auto one = i == 0 ? seats - 1 : (round + i) % (seats - 1);
      const auto other = (round + seats - 1 - i) % (seats - 1);
      const auto a = std::min(one, other), b = std::max(one, other);
      if (b < hosts) pairs.push_back({.a = a, .b = b, .from = leaders[a], .to = leaders[b]});
    }
  }
  return rounds;
}

// The lowest rank on each host, by host number.
std::vector<Rank> leaders_of(const Roster& roster) {
  const auto hosts = hosts_of(roster);
  std::vector<Rank> leaders(hosts.size());
  for (auto rank = static_cast<Rank>(roster.members.size()); rank-- > 0;) {
    const auto host = std::find(hosts.begin(), hosts.end(), roster.members[rank].host);
    leaders[static_cast<size_t>(host - hosts.begin())] = rank;
  }
  return leaders;
}

// Orders are numbered on from round to round: a late answer is for nothing any more.
void expect(Survey& survey, uint32_t orders) {
  survey.results.clear();
  survey.first_order += survey.orders;
  survey.orders = orders;
}

void ask(GuardedState& guarded, const std::vector<Pair>& pairs, Nanos until) {
  expect(guarded.survey, static_cast<uint32_t>(pairs.size()));
  auto order = guarded.survey.first_order;
  for (const auto& [a, b, from, to] : pairs) {
    const auto peer = guarded.members.peers()[from];
    if (peer == self_peer) {
      begin_probe(guarded, guarded.members.peers()[to], order++, LinkSpan::between_hosts, until);
      continue;
    }
    ByteWriter message;
    message.write(ControlKind::measure).write(order++).write(uint32_t{to}).write(int64_t{until - monotonic_now()});
    guarded.engine.send_control(peer, std::move(message).take());
  }
}

// Until all that was asked for is known, or it is too late.
void await_results(Runtime& runtime, Nanos until) {
  const auto over = [](GuardedState& guarded) {
    return guarded.survey.results.size() == guarded.survey.orders || !trouble(guarded).ok();
  };
  serve_survey(runtime, over, until);
}

void measure_inside(Runtime& runtime, Topology& topology, Nanos deadline) {
  const auto until = std::min(deadline, monotonic_now() + round_time_max);
  const bool asked = runtime.locked([&](GuardedState& guarded) {
    const auto& members = guarded.members.roster().members;
    for (Rank rank = 1; rank < members.size(); ++rank) {
      if (members[rank].host != members[0].host) continue;
      expect(guarded.survey, 1);
      begin_probe(guarded, guarded.members.peers()[rank], guarded.survey.first_order, LinkSpan::inside_host, until);
      return true;
    }
    return false;
  });
  if (!asked) return;
  await_results(runtime, until);
  const auto found = runtime.locked([&](GuardedState& guarded) { return guarded.survey.results[guarded.survey.first_order]; });
  topology.inside_measured = found.measured;
  if (found.measured)
    topology.inside = measured_profile(topology.inside, {.latency_us = found.latency_us, .bytes_per_us = found.bytes_per_us});
}

void measure_between(Runtime& runtime, Topology& topology, Nanos deadline) {
  const auto leaders = runtime.locked([&](GuardedState& guarded) { return leaders_of(guarded.members.roster()); });
  const bool all = leaders.size() <= linked_hosts_max;
  auto rounds = rounds_of(leaders);
  if (!all) rounds = {{{.a = 0, .b = 1, .from = leaders[0], .to = leaders[1]}}};
  if (all) topology.links = HostLinks(static_cast<uint32_t>(leaders.size()));
  std::vector<double> latencies, rates;
  for (const auto& pairs : rounds) {
    const auto until = std::min(deadline, monotonic_now() + round_time_max);
    if (pairs.empty() || monotonic_now() >= deadline) continue;
    runtime.locked([&](GuardedState& guarded) { ask(guarded, pairs, until); });
    await_results(runtime, until);
    runtime.locked([&](GuardedState& guarded) {
      for (const auto& [order, found] : guarded.survey.results) {
        if (!found.measured) continue;
        latencies.push_back(found.latency_us);
        rates.push_back(found.bytes_per_us);
        const auto& pair = pairs[order - guarded.survey.first_order];
        if (all) topology.links.between(pair.a, pair.b) = {.latency_us = found.latency_us, .bytes_per_us = found.bytes_per_us};
      }
    });
  }
  topology.between_measured = !rates.empty();
  if (!rates.empty())
    topology.between = measured_profile(topology.between, {.latency_us = median(latencies), .bytes_per_us = median(rates)});
}

}  // namespace

bool serve_survey(Runtime& runtime, const Runtime::Done& over, Nanos deadline) {
  const auto next = [&](const GuardedState& guarded) {
    const auto& open = guarded.survey.probe;
    return open ? std::min(deadline, open->probe.next_deadline()) : deadline;
  };
  while (true) {
    Nanos wake = deadline;
    const bool done = runtime.locked([&](GuardedState& guarded) {
      advance_probe(guarded);
      wake = next(guarded);
      return over(guarded);
    });
    if (done) return true;
    if (monotonic_now() >= deadline) return false;
    runtime.wait(
        [&](GuardedState& guarded) {
          return over(guarded) || next(guarded) != wake || (guarded.survey.probe && guarded.survey.probe->probe.done());
        },
        wake);
  }
}

Topology survey_links(Runtime& runtime, Nanos deadline) {
  const auto until = std::min(deadline, monotonic_now() + survey_time_max);
  auto topology = runtime.locked([&](GuardedState& guarded) { return initial_topology(guarded); });
  measure_inside(runtime, topology, until);
  measure_between(runtime, topology, until);
  runtime.locked([&](GuardedState& guarded) { expect(guarded.survey, 0); });
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
    open->probe.answered(message, monotonic_now());
    flush_probe(guarded);
  }
}

}  // namespace unisono

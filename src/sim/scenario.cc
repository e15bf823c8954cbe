#include "sim/scenario.h"

#include <algorithm>
#include <cstring>

#include "base/concat.h"
#include "sim/checkers.h"
#include "sim/reforming.h"
#include "sim/run.h"

namespace unisono::sim {
namespace {

constexpr ScenarioKind kinds[] = {ScenarioKind::all_reduce, ScenarioKind::random, ScenarioKind::wrong, ScenarioKind::reform};
// In large runs, a process waits for this time between two polls. Meanwhile frames collect, so that a poll takes several of
// them.
constexpr Nanos large_poll_gap = 5 * microsecond;
constexpr Nanos quiet_time = 10 * second;  // all operations must have ended when this time has passed since the last deadline

struct Plan {
  ClusterSettings cluster;
  Program program;
  FaultRequest fault_request;
  FaultPlan faults;
  bool large = false;
};

FlowLimits random_flow(Random& random) {
  if (random.chance(0.3)) return {};
  FlowLimits flow{.eager_bytes = uint64_t{64} << random.below(10), .window_bytes = 0, .staging_bytes = 0};
  flow.window_bytes = flow.eager_bytes << random.below(5);
  return flow;
}

Call all_reduce_of(const ScenarioSettings& s, uint64_t seed, Nanos timeout) {
  Call call;
  call.collective = Collective::all_reduce;
  call.dtype = s.dtype;
  call.count = s.bytes / element_bytes(s.dtype);
  call.seed = mix64(seed);
  call.options = {.op = s.op,
                  .order = s.order,
                  .schedule = s.schedule,
                  .timeout = Milliseconds(timeout / millisecond),
                  .id = 0,
                  .slice_bytes = s.slice_bytes};
  return call;
}

Plan make_plan(const ScenarioSettings& s, uint64_t seed) {
  Random random(mix64(seed ^ 0x756E69));
  Plan plan;
  const auto peers = s.peers != 0 ? s.peers : 2 + static_cast<uint32_t>(random.below(8));
  plan.fault_request = {.profile = s.faults, .processes = peers};
  auto& c = plan.cluster;
  c.processes = peers;
  c.seed = seed;
  c.topology = {shared_memory_profile(2), network_tcp_profile(2)};
  if (s.message_us != 0) c.topology.between.per_batch_cpu_us = s.message_us;
  if (s.kind == ScenarioKind::all_reduce) {
    // The timeout is long enough to send all data over the slowest links. Without faults, it should never expire.
    plan.fault_request.timeout = 2 * second + static_cast<Nanos>(s.bytes) * peers / 10;
    plan.program = single_call(peers, all_reduce_of(s, seed, plan.fault_request.timeout));
    for (Rank r = 0; r < peers; ++r) plan.program.groups[0].host_groups[r] = r / std::max(1u, s.ranks_per_host);
    plan.large = s.bytes * peers > (64u << 20);
  } else if (s.kind == ScenarioKind::reform) {
    plan.fault_request.timeout = ReformSettings{}.timeout;
    plan.fault_request.span = 20 * millisecond;
  } else {
    plan.fault_request.timeout = 2 * second;
    plan.program = random_program({.processes = peers, .timeout = plan.fault_request.timeout}, random);
    if (s.kind == ScenarioKind::wrong) make_wrong(plan.program, random);
    plan.fault_request.span =
        millisecond + static_cast<Nanos>(plan.program.calls.size()) * (plan.program.think_max + 200 * microsecond);
  }
  plan.faults = make_fault_plan(plan.fault_request, random);
  if (s.kind == ScenarioKind::all_reduce && s.faults == FaultProfile::none) {
    // In large runs, views of the senders' memory save gigabytes. However, with one_shot a rank adds only after its own sends
    // have ended, and with views a send ends only after the receiver has added. So the ranks would wait for each other.
    const bool one_shot =
        s.schedule == ScheduleKind::one_shot || (s.schedule == ScheduleKind::automatic && s.bytes < (128u << 10));
    c.network.single_copy = s.bytes * peers > (8u << 20) && !one_shot;
    if (plan.large) c.network.poll_gap = large_poll_gap;
    c.network.views_use_queue = !c.network.single_copy && seed % 2 == 1;
  } else {
    c.network = random_network(random);
    c.network.loss = plan.faults.loss;
    c.compute.mode = static_cast<ComputeMode>(random.below(3));
    c.limits.flow = random_flow(random);
  }
  c.network.fail_send = s.fail_send;
  c.network.fail_receive = s.fail_receive;
  c.network.fail_credit = s.fail_credit;
  c.network.fail_acquire = s.fail_acquire;
  return plan;
}

void schedule_faults(const FaultPlan& plan, Cluster& cluster) {
  for (const auto& f : plan.faults) {
    if (f.kind == FaultKind::slow) {
      cluster.slow_down(f.process, f.factor, f.factor);
      continue;
    }
    cluster.at(f.at, [f, &cluster] {
      auto& network = cluster.network();
      const auto until = f.time == never ? never : cluster.now() + f.time;
      switch (f.kind) {
        case FaultKind::stop: return cluster.stop(f.process, until);
        case FaultKind::kill: return cluster.kill(f.process, f.time);
        case FaultKind::cut: return network.cut(f.process, f.other, f.time / 2, f.time, "the link broke");
        case FaultKind::reset: return network.reset(f.process, f.other, until);
        case FaultKind::outage:
          for (PeerIndex other = 0; other < cluster.size(); ++other) {
            if (other != f.process) network.reset(f.process, other, until);
          }
          return;
        case FaultKind::partition:
          network.partition(f.side, until);
          for (PeerIndex a = 0; a < cluster.size() && f.notice != never; ++a) {
            for (PeerIndex b = 0; b < a; ++b) {
              if (f.side[a] != f.side[b]) network.cut(a, b, f.notice, f.notice, "no answer");
            }
          }
          return;
        case FaultKind::slow: return;
      }
    });
  }
  if (plan.faults_end_at > 0) cluster.at(plan.faults_end_at, [&cluster] { cluster.network().end_faults(); });
}

// Returns a large set of living processes in which every link is intact. To find it, removes the process with the most cut
// links, until no link between the remaining processes is cut.
std::vector<PeerIndex> connected_processes(Cluster& cluster) {
  std::vector<PeerIndex> connected;
  for (PeerIndex p = 0; p < cluster.size(); ++p) {
    if (cluster.alive(p)) connected.push_back(p);
  }
  for (;;) {
    const auto cuts = [&](PeerIndex p) {
      return std::count_if(connected.begin(), connected.end(),
                           [&](PeerIndex q) { return q != p && cluster.network().is_cut(p, q); });
    };
    const auto worst =
        std::max_element(connected.begin(), connected.end(), [&](PeerIndex a, PeerIndex b) { return cuts(a) < cuts(b); });
    if (worst == connected.end() || cuts(*worst) == 0) return connected;
    connected.erase(worst);
  }
}

// Checks liveness: the living processes that are connected to each other can form a new group and continue.
void check_connected_processes_continue(Cluster& cluster, uint64_t seed, std::vector<std::string>& problems) {
  const auto connected = connected_processes(cluster);
  if (connected.empty()) return;
  Call call;
  call.count = 1000;
  call.dtype = DType::i32;
  call.seed = mix64(seed ^ 0x636F7265);
  call.options.timeout = Milliseconds(2000);
  call.options.schedule = ScheduleKind::two_step;  // runs that show views of the senders' memory must not use one_shot
  Program program;
  program.groups.push_back({.number = 4711, .members = connected, .host_groups = std::vector<uint32_t>(connected.size(), 0)});
  program.calls.push_back(call);
  program.order.resize(cluster.size());
  for (const auto process : connected) program.order[process] = {0};
  Run run(cluster, program, {.large = false, .seed = seed});
  run.finish(cluster.now() + quiet_time);
  run.check_memory();
  for (Rank rank = 0; rank < connected.size(); ++rank) {
    const auto& part = run.parts()[0][rank];
    if (!part.done)
      problems.push_back(concat("the group of the ", connected.size(), " connected processes hangs at rank ", rank));
    else if (!part.status().ok())
      problems.push_back("the group of the connected processes fails: " + part.status().to_string());
  }
  check_values(program, 0, run.parts()[0], problems);
  problems.insert(problems.end(), run.problems().begin(), run.problems().end());
  cluster.on_progress(nullptr);
}

// Checks the values of a large run, which keeps no copies. The inputs are small whole numbers, so every order of additions
// gives the same sum.
void check_large(const Program& program, const Run& run, std::vector<std::string>& problems) {
  const auto& call = program.calls[0];
  const auto world = program.groups[0].world();
  constexpr size_t batch = 4096;
  const auto size = element_bytes(call.dtype);
  std::vector<std::vector<std::byte>> inputs(world, std::vector<std::byte>(batch * size));
  std::vector<const void*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<std::byte> expected(batch * size);
  for (size_t first = 0; first < call.count; first += batch) {
    const auto n = std::min(batch, call.count - first);
    for (Rank r = 0; r < world; ++r) fill_values(call.fill(r), first, n, inputs[r].data());
    kernels::reduce_reference({.dtype = call.dtype,
                               .op = call.options.op,
                               .sources = sources,
                               .destination = expected.data(),
                               .count = n,
                               .divisor = call.options.op == ReduceOp::avg ? world : 1});
    for (Rank r = 0; r < world; ++r) {
      const auto got = run.parts()[0][r].memory.output.view().subspan(first * size, n * size);
      if (std::memcmp(got.data(), expected.data(), got.size()) != 0)
        return problems.push_back(concat("rank ", r, " holds wrong values between elements ", first, " and ", first + n));
    }
  }
}

bool is_tainted(const Program& program, size_t call) {
  if (program.deviations.empty()) return false;
  // A missing call shifts the numbers of the later calls. The library may then combine different calls of equal size, so the
  // values of no call are defined.
  return std::any_of(program.deviations.begin(), program.deviations.end(),
                     [&](const Deviation& d) { return d.mistake == Mistake::missing || d.call == call; });
}

void count_outcomes(const Run& run, Outcome& outcome) {
  for (const auto& parts : run.parts()) {
    for (const auto& part : parts) {
      if (!part.submitted || !part.done) continue;
      outcome.virtual_time = std::max(outcome.virtual_time, part.ended_at);
      if (part.status().ok()) ++outcome.operations_ok;
      else ++outcome.errors[part.status().code()];
      if (outcome.schedule.empty()) outcome.schedule = part.completion->report.schedule;
    }
  }
}

void leave_groups(Cluster& cluster) {
  for (PeerIndex process = 0; process < cluster.size(); ++process) {
    if (!cluster.alive(process)) continue;
    cluster.engine(process).end_all_groups({Code::peer_lost, "the run is over"}, cluster.now());
    cluster.engine(process).set_epoch(sim_epoch + 1);
  }
}

// Runs the program. Checks its errors, its values, and its memory.
void run_program(const ScenarioSettings& settings, const Plan& plan, Cluster& cluster, Outcome& outcome) {
  const auto seed = plan.cluster.seed;
  auto& problems = outcome.problems;
  Run run(cluster, plan.program, {.large = plan.large, .seed = seed});
  run.finish(plan.faults.faults_end_at + plan.fault_request.span * 4 + plan.fault_request.timeout * 8 + quiet_time);
  const bool injected = settings.fail_send + settings.fail_receive > 0;
  const bool wrong = !plan.program.deviations.empty();
  const ErrorRules rules{.plan = plan.faults,
                         .all_must_succeed = harmless(plan.faults, plan.fault_request) && !wrong && !injected,
                         .wrong_program = wrong,
                         .any_rank_may_fail = injected};
  cluster.network().end_faults();
  check_errors(run, cluster, rules, problems);
  if (plan.large) check_large(plan.program, run, problems);
  for (size_t i = 0; i < plan.program.calls.size() && !plan.large; ++i) {
    if (!is_tainted(plan.program, i)) check_values(plan.program, i, run.parts()[i], problems);
  }
  check_mistakes(run, problems);
  run.check_memory();
  problems.insert(problems.end(), run.problems().begin(), run.problems().end());
  count_outcomes(run, outcome);
  if (settings.kind != ScenarioKind::all_reduce) outcome.schedule.clear();
  cluster.on_progress(nullptr);
  if (!plan.large) check_connected_processes_continue(cluster, seed, problems);
}

void run_reform(const Plan& plan, Cluster& cluster, Outcome& outcome) {
  const auto limit = plan.faults.faults_end_at + 20 * ReformSettings{}.timeout + quiet_time;
  const ReformSettings settings{.require_majority = plan.cluster.seed % 2 == 0, .seed = plan.cluster.seed};
  const auto report = run_reforming(cluster, plan.faults, settings, limit, outcome.problems);
  outcome.operations_ok = report.operations_ok;
  outcome.virtual_time = report.ended_at;
  if (report.operations_failed > 0) outcome.errors[Code::peer_lost] = report.operations_failed;
  if (report.epochs == 0 && report.operations_failed == 0 && report.removed > 0)
    outcome.problems.emplace_back("a rank was removed although nothing failed");
}

}  // namespace

const char* name(ScenarioKind kind) {
  constexpr const char* names[] = {"all-reduce", "random", "wrong", "reform"};
  return names[static_cast<size_t>(kind)];
}

Result<ScenarioKind> parse_scenario_kind(std::string_view text) {
  for (const auto kind : kinds) {
    if (text == name(kind)) return kind;
  }
  return Status(Code::invalid, "'" + std::string(text) + "' is not a scenario; expected all-reduce, random, wrong or reform");
}

Outcome run_scenario(const ScenarioSettings& settings, uint64_t seed, std::string* trace_text) {
  const auto plan = make_plan(settings, seed);
  Trace trace(trace_text);
  Cluster cluster(plan.cluster, trace);
  schedule_faults(plan.faults, cluster);
  Outcome outcome;
  outcome.seed = seed;
  outcome.plan = plan.faults.to_string();
  if (settings.kind == ScenarioKind::reform) run_reform(plan, cluster, outcome);
  else run_program(settings, plan, cluster, outcome);
  leave_groups(cluster);
  cluster.run_until(cluster.now() + quiet_time);
  check_nothing_held(cluster, outcome.problems);
  outcome.trace_hash = trace.hash();
  outcome.network = cluster.network().counters();
  outcome.events = cluster.events();
  return outcome;
}

}  // namespace unisono::sim

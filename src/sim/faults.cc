#include "sim/faults.h"

#include <algorithm>

#include "base/concat.h"

namespace unisono::sim {
namespace {

// If more than this fraction of the packets is lost, retransmissions may take longer than the timeout of an operation, or a
// link may break.
constexpr double lossy = 0.05;

constexpr FaultProfile profiles[] = {FaultProfile::none, FaultProfile::light,     FaultProfile::heavy, FaultProfile::kill,
                                     FaultProfile::stop, FaultProfile::partition, FaultProfile::mixed, FaultProfile::links};
constexpr auto mixed_profiles = static_cast<uint64_t>(FaultProfile::mixed);  // `mixed` chooses one of the first ones

Nanos time_below(Random& random, Nanos bound) { return static_cast<Nanos>(random.below(static_cast<uint64_t>(bound) + 1)); }

PeerIndex any(Random& random, uint32_t processes) { return static_cast<PeerIndex>(random.below(processes)); }

Fault make_slow(const FaultRequest& q, Random& random) {
  return {.kind = FaultKind::slow, .process = any(random, q.processes), .factor = 2 + random.unit() * 8};
}

// Makes a fault that stops a process for a while. Half of the stops are much shorter than an operation's timeout, and the
// others are much longer.
Fault make_stop(const FaultRequest& q, Random& random) {
  Fault fault{.kind = FaultKind::stop, .at = time_below(random, q.span), .process = any(random, q.processes)};
  fault.time = random.chance(0.5) ? time_below(random, q.timeout / 10) : 2 * q.timeout + time_below(random, q.timeout);
  return fault;
}

Fault make_kill(const FaultRequest& q, Random& random) {
  Fault fault{.kind = FaultKind::kill, .at = time_below(random, q.span), .process = any(random, q.processes)};
  fault.time = random.chance(0.15) ? never : time_below(random, q.timeout / 4);
  return fault;
}

Fault make_link_fault(FaultKind kind, Nanos time_max, const FaultRequest& q, Random& random) {
  Fault fault{.kind = kind,
              .at = time_below(random, q.span),
              .process = any(random, q.processes),
              .time = time_below(random, time_max)};
  fault.other = (fault.process + 1 + any(random, q.processes - 1)) % q.processes;
  return fault;
}

Fault make_cut(const FaultRequest& q, Random& random) { return make_link_fault(FaultKind::cut, q.timeout / 4, q, random); }

// Mostly, a link heals while its operation runs.
Fault make_reset(const FaultRequest& q, Random& random) {
  return make_link_fault(FaultKind::reset, random.chance(0.8) ? q.span : q.timeout / 20, q, random);
}

Fault make_outage(const FaultRequest& q, Random& random) {
  return {.kind = FaultKind::outage,
          .at = time_below(random, q.span),
          .process = any(random, q.processes),
          .time = time_below(random, q.timeout / 20)};
}

Fault make_partition(const FaultRequest& q, Random& random) {
  Fault fault{.kind = FaultKind::partition, .at = time_below(random, q.span)};
  fault.side.resize(q.processes);
  for (size_t i = 0; i < q.processes; ++i) fault.side[i] = random.chance(0.5);
  fault.side[any(random, q.processes)] = true;
  if (random.chance(0.5)) {
    fault.time = time_below(random, q.timeout / 10);
  } else {
    fault.time = 2 * q.timeout;
    fault.notice = random.chance(0.3) ? never : time_below(random, q.timeout / 2);
  }
  return fault;
}

std::string process_text(PeerIndex process) { return concat("process ", process); }
std::string time_text(Nanos time) { return time == never ? "never" : concat(time / microsecond, " us"); }

std::string to_string(const Fault& f) {
  const auto at = " at " + time_text(f.at);
  switch (f.kind) {
    case FaultKind::slow: return concat(process_text(f.process), " is ", f.factor, " times as slow");
    case FaultKind::stop: return process_text(f.process) + " stops" + at + " for " + time_text(f.time);
    case FaultKind::kill: return process_text(f.process) + " dies" + at + ", noticed after " + time_text(f.time);
    case FaultKind::cut:
      return "the link of " + process_text(f.process) + " and " + process_text(f.other) + " is cut" + at + ", noticed after " +
             time_text(f.time);
    case FaultKind::reset:
      return "the link of " + process_text(f.process) + " and " + process_text(f.other) + " is reset" + at +
             ", connected again after " + time_text(f.time);
    case FaultKind::outage: return process_text(f.process) + " is cut off" + at + " for " + time_text(f.time);
    case FaultKind::partition: {
      std::string text = "partition" + at + " for " + time_text(f.time) + ", noticed after " + time_text(f.notice) + ": ";
      for (const bool side : f.side) text += side ? '1' : '0';
      return text;
    }
  }
  return "?";
}

Nanos end_of(const Fault& f) {
  if (f.kind == FaultKind::slow || f.time == never) return f.at;
  return f.at + f.time + (f.notice == never ? 0 : f.notice);
}

}  // namespace

const char* name(FaultProfile profile) {
  constexpr const char* names[] = {"none", "light", "heavy", "kill", "stop", "partition", "mixed", "links"};
  return names[static_cast<size_t>(profile)];
}

Result<FaultProfile> parse_fault_profile(std::string_view text) {
  for (const auto profile : profiles) {
    if (text == name(profile)) return profile;
  }
  return Status(
      Code::invalid,
      "'" + std::string(text) + "' is not a fault profile; expected none, light, heavy, kill, stop, partition, mixed or links");
}

std::string FaultPlan::to_string() const {
  std::string text = loss > 0 ? concat("packet loss ", loss) : std::string();
  for (const auto& fault : faults) text += (text.empty() ? "" : "; ") + sim::to_string(fault);
  return text.empty() ? "no faults" : text;
}

FaultPlan make_fault_plan(const FaultRequest& q, Random& random) {
  FaultPlan plan;
  if (q.profile == FaultProfile::none || q.processes < 2) return plan;
  const auto add = [&](auto make, uint64_t most) {
    for (uint64_t i = random.below(most + 1); i > 0; --i) plan.faults.push_back(make(q, random));
  };
  const auto at_least_one = [&](auto make, uint64_t most) {
    for (uint64_t i = 1 + random.below(most); i > 0; --i) plan.faults.push_back(make(q, random));
  };
  auto profile = q.profile;
  const bool mixed = profile == FaultProfile::mixed;
  if (mixed) profile = profiles[random.below(mixed_profiles)];
  if (random.chance(0.5) && profile != FaultProfile::none) plan.loss = random.unit() * 0.02;
  add(make_slow, 1);
  switch (profile) {
    case FaultProfile::heavy:
      plan.loss = random.unit() * 0.3;
      add(make_cut, 2);
      break;
    case FaultProfile::kill: at_least_one(make_kill, 2); break;
    case FaultProfile::stop: at_least_one(make_stop, 2); break;
    case FaultProfile::partition: at_least_one(make_partition, 1); break;
    case FaultProfile::links:
      at_least_one(make_reset, 12);
      add(make_outage, 2);
      if (random.chance(0.2)) add(make_kill, 1), add(make_stop, 1);
      break;
    default: break;
  }
  if (mixed && random.chance(0.3)) add(make_kill, 1), add(make_stop, 1), add(make_cut, 1);
  plan.faults_end_at = q.span;
  for (const auto& fault : plan.faults) plan.faults_end_at = std::max(plan.faults_end_at, end_of(fault));
  return plan;
}

// Returns true for faults that no process notices, apart from the time.
static bool heals(const Fault& fault) { return fault.kind == FaultKind::reset || fault.kind == FaultKind::outage; }

bool harmless(const FaultPlan& plan, const FaultRequest& q) {
  if (plan.loss > lossy) return false;
  return std::all_of(plan.faults.begin(), plan.faults.end(), [&](const Fault& f) {
    return f.kind == FaultKind::slow || heals(f) ||
           ((f.kind == FaultKind::stop || f.kind == FaultKind::partition) && f.time <= q.timeout / 10 && f.notice == never);
  });
}

bool is_faulty(const FaultPlan& plan, PeerIndex process) {
  if (plan.loss > lossy) return true;  // loss may break any link
  return std::any_of(plan.faults.begin(), plan.faults.end(), [&](const Fault& f) {
    if (heals(f)) return false;
    return f.kind == FaultKind::partition || f.process == process || (f.kind == FaultKind::cut && f.other == process);
  });
}

NetworkSettings random_network(Random& random) {
  NetworkSettings n;
  n.latency = 5 * microsecond + time_below(random, 100 * microsecond);
  n.jitter = random.chance(0.5) ? 0 : time_below(random, 300 * microsecond);
  n.bytes_per_us = random.chance(0.3) ? 50 : 1250 + random.unit() * 10'000;
  n.ordered = random.chance(0.4);
  n.queue_frames_max = 1 + static_cast<uint32_t>(random.below(random.chance(0.5) ? 4 : 64));
  n.views_use_queue = random.chance(0.5);
  n.slots = 2 + static_cast<uint32_t>(random.below(30));
  n.result_slots = 1 + static_cast<uint32_t>(random.below(n.slots - 1));
  const auto chance = [&] { return random.chance(0.3) ? 0.0 : random.chance(0.3) ? 1.0 : random.unit(); };
  n.view_chance = chance();
  n.copy = chance();
  n.split = chance();
  n.refuse = random.chance(0.5) ? 0 : random.unit() * 0.3;
  n.events_per_poll_max = random.chance(0.5) ? 0 : 1 + static_cast<uint32_t>(random.below(4));
  n.wake_max = random.chance(0.3) ? 0 : time_below(random, 50 * microsecond);
  n.views_take_credit = n.views_use_queue && random.chance(0.5);
  return n;
}

}  // namespace unisono::sim

#include "lab/loss/udp_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/concat.h"
#include "group/api/calls.h"
#include "lab/loss/udp_tally.h"
#include "sim/udp/udp_cluster.h"

namespace unisono::sim {
namespace {

constexpr uint32_t peers_max = 256;
constexpr Nanos linking_max = 60 * second, call_timeout = 30 * second;

// Returns the time between two turns of a process. In a turn, a process polls all its links. With many peers, turns are
// therefore rarer, and each of them handles more datagrams.
Nanos turn_of(uint32_t peers) { return std::clamp<Nanos>(peers * microsecond, 5 * microsecond, 100 * microsecond); }

Result<RangeGeometry> geometry_of(const UdpRunSettings& settings, uint32_t world, uint32_t datagram_bytes) {
  return RangeGeometry::make({.elements = settings.bytes / sizeof(float),
                              .world = world,
                              .datagram_bytes = datagram_bytes,
                              .codec = wire_codec(plain_codec.reduce, DType::f32, DType::f32, false)});
}

class UdpRun {
 public:
  UdpRun(const UdpRunSettings& settings, const UdpClusterSettings& cluster, const std::function<void(uint64_t)>& progress)
      : settings_(settings),
        progress_(progress),
        cluster_(cluster),
        tally_(settings),
        random_(mix64(settings.seed ^ 0x72756E)),
        callers_(settings.peers) {}

  Result<UdpOutcome> run();

 private:
  struct Caller {
    std::vector<float> input, output;
    std::shared_ptr<Completion> completion = nullptr;  // completion of the running call
    bool waits_for_reform = false;                     // true: the process makes no call until the group has been formed again
    bool finished = false;
    std::vector<Rank> silent = {};  // ranks that sent nothing during this process's last call
  };

  Nanos since_begin() const { return cluster_.now() - began_; }
  double slowness(PeerIndex process) const;
  bool is_ever_absent(PeerIndex process) const;
  void plan_faults();
  Status form(const std::vector<PeerIndex>& members, uint64_t first_operation);
  void call(PeerIndex process);
  void call_later(PeerIndex process);
  void ended(PeerIndex process);
  std::vector<PeerIndex> lost_members() const;
  void reform_if_ready();
  bool is_over() const;

  const UdpRunSettings settings_;
  const std::function<void(uint64_t)>& progress_;
  UdpCluster cluster_;
  UdpTally tally_;
  Random random_;
  std::vector<Caller> callers_;
  Nanos began_ = 0;
  uint32_t epoch_ = 0;
  bool must_reform_ = false;   // a rank has declared that a member is lost, so the group must be formed again
  uint64_t reform_after_ = 0;  // number of the operation in which this was declared
  uint64_t reported_ = 0;      // number of operations that were reported to progress_
  bool over_ = false;          // fewer than two members or no operations are left
  Status failure_;
};

double UdpRun::slowness(PeerIndex process) const {
  double factor = 1;
  for (const auto& fault : settings_.model.faults) {
    if (fault.kind == PeerFaultKind::slow && fault.process == process) factor *= fault.factor;
  }
  return factor;
}

bool UdpRun::is_ever_absent(PeerIndex process) const {
  return std::any_of(settings_.model.faults.begin(), settings_.model.faults.end(),
                     [&](const PeerFault& fault) { return fault.process == process && fault.kind != PeerFaultKind::slow; });
}

void UdpRun::plan_faults() {
  for (const auto& fault : settings_.model.faults) {
    const auto process = fault.process;
    const auto from = began_ + fault.from, to = fault.to == never ? never : began_ + fault.to;
    switch (fault.kind) {
      case PeerFaultKind::dead:
        cluster_.at(from, [this, process] { cluster_.network().cut_off(process, true); });
        if (to != never) cluster_.at(to, [this, process] { cluster_.network().cut_off(process, false); });
        break;
      case PeerFaultKind::kill: cluster_.at(from, [this, process] { cluster_.kill(process), reform_if_ready(); }); break;
      case PeerFaultKind::stop: cluster_.at(from, [this, process, to] { cluster_.stop(process, to); }); break;
      case PeerFaultKind::slow: break;  // the process is slow from the start of the run, so there is nothing to plan
    }
  }
}

Status UdpRun::form(const std::vector<PeerIndex>& members, uint64_t first_operation) {
  if (auto status = cluster_.make_group(members, ++epoch_); !status.ok()) return status;
  auto geometry = geometry_of(settings_, static_cast<uint32_t>(members.size()), cluster_.datagram_bytes());
  if (!geometry.ok()) return geometry.status();
  tally_.begin({.members = members, .first_operation = first_operation, .geometry = *geometry, .began = cluster_.now()});
  for (Rank rank = 0; rank < members.size(); ++rank) {
    auto& caller = callers_[members[rank]];
    tally_.fill(rank, caller.input);
    caller.output.assign(caller.input.size(), 0);
    caller.completion.reset();
    caller.silent.clear();
    caller.waits_for_reform = false;
    call_later(members[rank]);
  }
  return {};
}

void UdpRun::call_later(PeerIndex process) {
  const auto& model = settings_.model;
  const auto spread = static_cast<Nanos>(random_.below(static_cast<uint64_t>(model.spread) + 1));
  const auto work = static_cast<Nanos>(static_cast<double>(model.compute + spread) * slowness(process));
  cluster_.at(cluster_.now() + work, [this, process, epoch = epoch_] {
    if (epoch == epoch_ && cluster_.alive(process) && !callers_[process].waits_for_reform) call(process);
  });
}

void UdpRun::call(PeerIndex process) {
  const auto& membership = tally_.membership();
  const auto rank = membership.rank_of(process);
  if (rank == membership.world()) return;  // the group was formed again without this process
  auto& caller = callers_[process];
  const CallOptions options{.op = ReduceOp::avg,
                            .timeout = std::chrono::duration_cast<Milliseconds>(std::chrono::nanoseconds(call_timeout)),
                            .delivery = Delivery::lossy,
                            .lossy = settings_.delivery};
  auto request =
      all_reduce_call({.self = rank, .world = membership.world(), .timeout = call_timeout},
                      ConstTensor(std::span<const float>(caller.input)), Tensor(std::span<float>(caller.output)), options);
  if (!request.ok()) {
    failure_ = request.status();
    return;
  }
  caller.completion = cluster_.submit(process, std::move(*request));
}

void UdpRun::ended(PeerIndex process) {
  auto& caller = callers_[process];
  const auto completion = std::exchange(caller.completion, nullptr);
  tally_.ended({.process = process, .completion = *completion, .result = caller.output, .now = since_begin()},
               cluster_.network());
  caller.silent = tally_.silent_ranks(*completion);
  const auto number = completion->report.number;
  // If this rank itself is away, it cannot tell the others. So its error does not cause the group to be formed again.
  const bool lost_peer = completion->status.code() == Code::peer_lost;
  if (lost_peer && !must_reform_ && !tally_.is_away(process, since_begin())) {
    must_reform_ = true;
    reform_after_ = number;
  }
  if (const auto done = tally_.membership().first_operation + number + 1; done > reported_) {
    if (progress_) progress_(done - reported_);
    reported_ = done;
  }
  caller.waits_for_reform = lost_peer || (must_reform_ && number >= reform_after_);
  caller.finished = tally_.membership().first_operation + number + 1 >= settings_.operations;
  if (caller.waits_for_reform) reform_if_ready();
  else if (!caller.finished) call_later(process);
}

// Returns the members that are not alive, and the members from which at least half of the other ranks have received nothing.
std::vector<PeerIndex> UdpRun::lost_members() const {
  const auto& membership = tally_.membership();
  std::vector<uint32_t> votes(membership.world());
  for (const auto member : membership.members) {
    if (!callers_[member].waits_for_reform || !cluster_.alive(member)) continue;
    for (const auto rank : callers_[member].silent) ++votes[rank];
  }
  std::vector<PeerIndex> lost;
  for (Rank rank = 0; rank < membership.world(); ++rank) {
    if (2 * votes[rank] >= membership.world() - 1 || !cluster_.alive(membership.members[rank]))
      lost.push_back(membership.members[rank]);
  }
  return lost;
}

void UdpRun::reform_if_ready() {
  if (!must_reform_) return;
  const auto& membership = tally_.membership();
  const auto lost = lost_members();
  std::vector<PeerIndex> members;
  for (const auto member : membership.members) {
    if (std::find(lost.begin(), lost.end(), member) != lost.end()) continue;
    if (!callers_[member].waits_for_reform && !callers_[member].finished) return;
    members.push_back(member);
  }
  for (const auto process : lost) tally_.removed(process);
  const auto next = membership.first_operation + reform_after_ + 1;
  must_reform_ = false;
  if (members.size() < 2 || next >= settings_.operations) {
    over_ = true;
    return;
  }
  for (const auto member : members) callers_[member].finished = false;
  // The new group is formed in a separate event, because this function may run inside a turn of the old group.
  cluster_.at(cluster_.now(), [this, members, next] {
    if (auto status = form(members, next); !status.ok()) failure_ = status;
  });
}

// True if the run has ended or failed. If a fault makes a rank absent, the run does not wait for this rank, even if the absence
// is short.
bool UdpRun::is_over() const {
  if (over_ || !failure_.ok()) return true;
  const auto& membership = tally_.membership();
  return std::all_of(membership.members.begin(), membership.members.end(),
                     [&](PeerIndex member) { return callers_[member].finished || is_ever_absent(member); });
}

Result<UdpOutcome> UdpRun::run() {
  std::vector<PeerIndex> all_peers;
  for (PeerIndex process = 0; process < settings_.peers; ++process) {
    all_peers.push_back(process);
    cluster_.network().slow_down(process, slowness(process));
  }
  if (auto status = cluster_.link_all(linking_max); !status.ok()) return status;
  began_ = cluster_.now();
  if (auto status = form(all_peers, 0); !status.ok()) return status;
  plan_faults();
  cluster_.on_turn([this](PeerIndex process) {
    if (callers_[process].completion && callers_[process].completion->done) ended(process);
  });
  // The run may last at most this long in virtual time: the timeouts of all calls, plus the times in the fault plan.
  auto limit = began_ + static_cast<Nanos>(settings_.operations + 10) * call_timeout;
  for (const auto& fault : settings_.model.faults) limit += fault.to == never ? fault.from : fault.to;
  bool goes_on = true;
  while (goes_on && !is_over() && cluster_.now() < limit) {
    for (int i = 0; i < 256 && goes_on; ++i) goes_on = cluster_.step();
  }
  if (!failure_.ok()) return failure_;
  const bool is_stuck = !is_over();
  auto outcome = tally_.finish(cluster_.network(), since_begin());
  outcome.is_stuck = is_stuck;
  outcome.linked = began_;
  outcome.datagram_bytes = cluster_.datagram_bytes();
  outcome.ranges = tally_.membership().geometry->ranges(0);
  outcome.events = cluster_.events();
  return outcome;
}

}  // namespace

Status check(const UdpRunSettings& s) {
  const auto invalid = [](const std::string& why) { return Status(Code::invalid, why); };
  if (s.peers < 2 || s.peers > peers_max)
    return invalid(concat(s.peers, " peers: 2 to ", peers_max, " can be simulated over UDP"));
  if (s.bytes < sizeof(float) || s.bytes % sizeof(float) != 0 || s.bytes > udp_bytes_max)
    return invalid(concat(s.bytes, " bytes: a multiple of 4, from 4 to 256M"));
  if (!s.loss.dead.empty() || !s.loss.slow.empty())
    return invalid("dead= and slow= of a loss count in steps; over a network use --network dead=3@2s or slow=5x10");
  for (const auto& status : {s.model.check(s.peers), s.loss.check(s.peers), s.delivery.check()}) {
    if (!status.ok()) return status;
  }
  if (auto geometry = geometry_of(s, s.peers, s.model.datagram_bytes); !geometry.ok()) return geometry.status();
  return {};
}

Result<UdpOutcome> run_udp(const UdpRunSettings& settings, const std::function<void(uint64_t)>& progress) {
  if (auto status = check(settings); !status.ok()) return status;
  const auto ranges = geometry_of(settings, settings.peers, settings.model.datagram_bytes)->ranges(0);
  const UdpClusterSettings cluster{.network = {.processes = settings.peers,
                                               .seed = settings.seed,
                                               .bytes_per_second = static_cast<double>(settings.model.bits_per_second) / 8,
                                               .delay = settings.model.delay,
                                               .jitter = settings.model.jitter,
                                               .queue_bytes = settings.model.queue_bytes,
                                               .datagram_bytes_max = settings.model.datagram_bytes,
                                               .loss = settings.loss,
                                               .ranges = ranges},
                                   .turn = turn_of(settings.peers)};
  return UdpRun(settings, cluster, progress).run();
}

void PhaseTally::append(const PhaseTally& other) {
  expected += other.expected;
  missing += other.missing;
  repaired += other.repaired;
  phases += other.phases;
  over += other.over;
  longest = std::max(longest, other.longest);
}

void UdpOutcome::append(const UdpOutcome& other) {
  for (const auto& [code, count] : other.ended) ended[code] += count;
  for (const auto& [process, count] : other.silent) silent[process] += count;
  for (size_t i = 0; i < ends.size(); ++i) ends[i] += other.ends[i];
  for (size_t i = 0; i < by_distance.size(); ++i) {
    by_distance[i].expected += other.by_distance[i].expected;
    by_distance[i].missing += other.by_distance[i].missing;
  }
  behind += other.behind;
  failed_without_fault += other.failed_without_fault;
  if (wrongly_named == 0) first_wrong_error = other.first_wrong_error;
  wrongly_named += other.wrongly_named;
  differing += other.differing;
  out_of_range += other.out_of_range;
  durations_us.insert(durations_us.end(), other.durations_us.begin(), other.durations_us.end());
  std::sort(durations_us.begin(), durations_us.end());
  contributions.append(other.contributions);
  results.append(other.results);
  delayed += other.delayed;
  delayed_over += other.delayed_over;
  longest_delay = std::max(longest_delay, other.longest_delay);
  ranges_full += other.ranges_full;
  ranges_short += other.ranges_short;
  ranges_empty += other.ranges_empty;
  const auto own = static_cast<double>(operations), its = static_cast<double>(other.operations);
  effective = (effective * own + other.effective * its) / std::max(1., own + its);
  deviation.append(other.deviation);
  square.append(other.square);
  away_share.append(other.away_share);
  fates = fates + other.fates;
  for (size_t phase = 0; phase < data.size(); ++phase) data[phase] = data[phase] + other.data[phase];
  faults.insert(faults.end(), other.faults.begin(), other.faults.end());
  trace_hash = mix64(trace_hash ^ other.trace_hash);
  events += other.events;
  operations += other.operations;
  virtual_time += other.virtual_time;
  members = std::min(members, other.members);
  is_stuck |= other.is_stuck;
}

int64_t UdpOutcome::duration_us(double part) const {
  if (durations_us.empty()) return 0;
  const auto position = static_cast<size_t>(std::ceil(part * static_cast<double>(durations_us.size())));
  return durations_us[std::clamp<size_t>(position, 1, durations_us.size()) - 1];
}

}  // namespace unisono::sim

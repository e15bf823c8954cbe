#include "sim/reforming.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/concat.h"
#include "group/api/calls.h"
#include "group/lifecycle/reform.h"
#include "sim/tensors.h"

namespace unisono::sim {
namespace {

constexpr std::byte reform_kind{1};  // the first byte of each control message about re-forming, as in group/lifecycle

PeerId id_of(PeerIndex process) { return {.low = process + 1, .high = 0x73696D}; }
PeerIndex process_of(const PeerId& id) { return static_cast<PeerIndex>(id.low - 1); }

Roster first_roster(uint32_t processes) {
  Roster roster{.epoch = 1, .key = {}, .members = {}};
  for (PeerIndex p = 0; p < processes; ++p) {
    roster.members.push_back({.id = id_of(p),
                              .rank = p,
                              .host = concat("host", p / 2),
                              .pid = static_cast<int32_t>(100 + p),
                              .endpoints = {concat("sim://", p)}});
  }
  return roster;
}

// One process. This class takes the place of group/lifecycle and of the user's program.
class Member {
 public:
  using Report = std::function<void(const std::string&)>;

  Member(Cluster& cluster, PeerIndex self, const ReformSettings& settings, Report report)
      : cluster_(cluster),
        self_(self),
        settings_(settings),
        report_(std::move(report)),
        reform_(first_roster(cluster.size()), id_of(self)),
        random_(mix64(settings.seed) ^ self) {
    auto& engine = cluster_.engine(self_);
    engine.on_control([this](PeerIndex from, ByteView message) { on_message(from, message); });
    engine.on_lost([this](PeerIndex peer, const Status&, PeerFate fate) {
      if (fate == PeerFate::ended) reform_.peer_dead(id_of(peer), cluster_.now());
      else reform_.peer_lost(id_of(peer), cluster_.now());
      due_ = true;
    });
    engine.on_removed([this](PeerIndex) {
      removed_ = true;
      due_ = true;
    });
    form();
  }

  // Continues the program. This is called after every event of the process, and by its timer.
  void proceed() {
    if (ended_) return;
    if (due_ || reform_.next_deadline() <= cluster_.now()) step_reform();
    if (ended_ || reform_.running()) return;
    if (operation_ != nullptr) {
      if (operation_->done) finish_call();
    } else if (reform_.requested_by_peer()) {
      begin_reforming();
    } else if (done_ < settings_.calls && !waiting_) {
      call_later();
    }
  }

  bool finished() const { return ended_ || (done_ >= settings_.calls && !reform_.running() && !reform_.requested_by_peer()); }
  bool ended() const { return ended_; }
  const Status& end_status() const { return end_status_; }
  const std::vector<Roster>& rosters() const { return rosters_; }
  ReformReport report() const { return counts_; }
  // Returns true if this process has finished an operation under this roster.
  bool has_computed(const Roster& roster) const { return computed_.contains(wire_epoch(roster)); }

 private:
  void form() {
    rosters_.push_back(reform_.roster());
    const auto& roster = rosters_.back();
    std::vector<PeerIndex> members;
    std::vector<uint32_t> host_groups;
    for (const auto& member : roster.members) {
      members.push_back(process_of(member.id) == self_ ? self_peer : process_of(member.id));
      host_groups.push_back(process_of(member.id) / 2);
    }
    auto& engine = cluster_.engine(self_);
    engine.set_epoch(wire_epoch(roster));
    group_ = &engine.make_group(1, wire_epoch(roster), std::move(members), std::move(host_groups));
    done_ = 0;
  }

  Fill fill(PeerIndex process) const {
    return {.dtype = DType::i32,
            .seed = mix64(settings_.seed ^ uint64_t{wire_epoch(rosters_.back())} << 16 ^ done_ << 8 ^ process)};
  }

  // The engine may be in the middle of a callback now, so the next call is made in a later event.
  void call_later() {
    waiting_ = true;
    cluster_.at(cluster_.now() + static_cast<Nanos>(random_.below(static_cast<uint64_t>(settings_.think_max))), [this] {
      waiting_ = false;
      if (!cluster_.alive(self_) || ended_ || reform_.running() || reform_.requested_by_peer() || operation_ != nullptr ||
          done_ >= settings_.calls)
        return;
      if (cluster_.awake_at(self_) > cluster_.now()) return later(cluster_.awake_at(self_));
      call();
    });
  }

  void later(Nanos at) {
    cluster_.at(at, [this] {
      if (!cluster_.alive(self_)) return;
      if (cluster_.awake_at(self_) > cluster_.now()) return later(cluster_.awake_at(self_));
      proceed();
    });
  }

  void call() {
    tensor_ = GuardedBuffer(settings_.elements * sizeof(int32_t), 0);
    fill_values(fill(self_), 0, settings_.elements, tensor_.data());
    const Tensor tensor{tensor_.data(), settings_.elements, DType::i32};
    const Caller caller{group_->self, group_->world(), settings_.timeout};
    auto request = all_reduce_call(caller, tensor, tensor, {.slice_bytes = 4096});
    operation_ = cluster_.engine(self_).submit(*group_, std::move(*request), 0, cluster_.now());
    cluster_.touched(self_);
  }

  void finish_call() {
    const auto operation = std::move(operation_);
    operation_ = nullptr;
    counts_.ended_at = cluster_.now();
    if (operation->status.ok()) {
      ++counts_.operations_ok;
      check();
      ++done_;
      computed_.insert(wire_epoch(rosters_.back()));
      return later(cluster_.now());
    }
    ++counts_.operations_failed;
    const auto code = operation->status.code();
    if (code != Code::peer_lost && code != Code::late) report_("unexpected error: " + operation->status.to_string());
    begin_reforming();
  }

  void check() {
    std::vector<std::byte> sum(tensor_.bytes()), one(tensor_.bytes());
    std::vector<int32_t> total(settings_.elements), part(settings_.elements);
    for (const auto& member : rosters_.back().members) {
      fill_values(fill(process_of(member.id)), 0, settings_.elements, one.data());
      std::copy(one.begin(), one.end(), reinterpret_cast<std::byte*>(part.data()));
      for (size_t i = 0; i < total.size(); ++i)
        total[i] = static_cast<int32_t>(static_cast<uint32_t>(total[i]) + static_cast<uint32_t>(part[i]));
    }
    if (!std::equal(tensor_.view().begin(), tensor_.view().end(), reinterpret_cast<const std::byte*>(total.data())))
      report_(concat("wrong values in epoch ", rosters_.back().epoch));
    if (!tensor_.guards_intact()) report_("memory beside a tensor was written to");
  }

  void begin_reforming() {
    auto& engine = cluster_.engine(self_);
    operation_ = nullptr;
    engine.end_all_groups({Code::peer_lost, "the group is being re-formed"}, cluster_.now());
    ReformRequest request{.dead = {},
                          .joiners = {},
                          .timeout = settings_.reform_timeout,
                          .link_timeout = settings_.link_timeout,
                          .require_majority = settings_.require_majority};
    for (const auto& member : reform_.roster().members) {
      const auto process = process_of(member.id);
      if (process == self_ || engine.peer_status(process).ok()) continue;
      const bool ended = engine.peer_fate(process) == PeerFate::ended;
      (ended ? request.dead : request.lost).push_back(member.id);
    }
    const auto status = reform_.start(request, cluster_.now());
    if (!status.ok()) report_("cannot re-form: " + status.to_string());
    step_reform();
  }

  void on_message(PeerIndex from, ByteView message) {
    if (message.empty() || message.front() != reform_kind) return;
    const auto status = reform_.message(id_of(from), message.subspan(1), cluster_.now());
    if (!status.ok()) report_(concat("a message of process ", from, " is refused: ", status.to_string()));
    due_ = true;
    flush();
    // Operations that are nearly complete may still succeed: a faster rank sends all of its data before it begins to re-form
    // the group, so the missing data is already on its way.
    const auto now = cluster_.now();
    if (reform_.requested_by_peer() && operation_ != nullptr)
      cluster_.engine(self_).drain(from, {Code::peer_lost, "another member re-forms the group"},
                                   now + settings_.reform_timeout / 2, now);
  }

  void flush() {
    auto& engine = cluster_.engine(self_);
    for (auto& send : reform_.take_sends()) {
      const auto peer = process_of(send.to);
      if (peer >= cluster_.size() || !engine.peer_status(peer).ok()) continue;
      Bytes message{reform_kind};
      message.insert(message.end(), send.bytes.begin(), send.bytes.end());
      engine.send_control(peer, std::move(message));
    }
  }

  // Executes one step of the re-forming state machine, and does what follows from the step.
  void step_reform() {
    due_ = false;
    if (removed_) return end({Code::peer_lost, "removed"});
    if (reform_.running()) reform_.woke(cluster_.now());
    flush();
    if (auto result = reform_.take_result()) {
      if (!result->ok()) return end(result->status());
      adopt(**result);
    }
    const auto deadline = reform_.next_deadline();
    if (deadline != never) later(std::max(deadline, cluster_.now() + 1));
  }

  void adopt(const ReformResult& result) {
    auto& engine = cluster_.engine(self_);
    for (const auto& lost : result.lost) {
      const auto peer = process_of(lost.id);
      if (!engine.peer_status(peer).ok()) continue;
      engine.send_removed(peer);
      engine.remove_peer(peer);
    }
    ++counts_.epochs;
    form();
    later(cluster_.now());
  }

  void end(const Status& why) {
    ended_ = true;
    end_status_ = why;
    operation_ = nullptr;
    cluster_.engine(self_).end_all_groups(why, cluster_.now());
  }

  Cluster& cluster_;
  PeerIndex self_;
  const ReformSettings& settings_;
  Report report_;
  Reform reform_;
  Random random_;
  GroupCore* group_ = nullptr;
  std::vector<Roster> rosters_;
  std::set<uint32_t> computed_;  // the rosters under which operations were finished, by wire_epoch()
  std::shared_ptr<Completion> operation_;
  GuardedBuffer tensor_;
  uint64_t done_ = 0;
  bool waiting_ = false, due_ = false, removed_ = false, ended_ = false;
  Status end_status_;
  ReformReport counts_;
};

bool was_stopped(const FaultPlan& plan, PeerIndex process) {
  return std::any_of(plan.faults.begin(), plan.faults.end(),
                     [&](const Fault& f) { return f.kind == FaultKind::stop && f.process == process; });
}

// Returns whether members may fall silent for good without a proof that they have ended. Then the others may lack a majority.
bool may_lack_majority(const FaultPlan& plan, const ReformSettings& settings) {
  return settings.require_majority && std::any_of(plan.faults.begin(), plan.faults.end(), [](const Fault& f) {
           return f.kind == FaultKind::stop || (f.kind == FaultKind::kill && f.time == never);
         });
}

// Returns whether the plan contains only faults of processes. For other plans, only safety is checked: cut links and partitions
// may leave two groups, and links that lose packets may remove any rank.
bool only_processes_fail(const FaultPlan& plan) {
  return plan.loss < 0.05 && std::none_of(plan.faults.begin(), plan.faults.end(), [](const Fault& f) {
           return f.kind == FaultKind::cut || f.kind == FaultKind::partition;
         });
}

void check_rosters(const std::vector<std::unique_ptr<Member>>& members, Cluster& cluster, const FaultPlan& plan,
                   const ReformSettings& settings, std::vector<std::string>& problems) {
  std::map<uint32_t, Roster> by_epoch;
  std::map<uint32_t, uint32_t> computed;  // by number of the epoch
  std::optional<Roster> last;
  for (PeerIndex p = 0; p < members.size(); ++p) {
    const auto& m = *members[p];
    for (const auto& roster : m.rosters()) {
      const auto [at, fresh] = by_epoch.emplace(wire_epoch(roster), roster);
      if (!fresh && at->second != roster) problems.push_back(concat("two rosters under epoch ", roster.epoch));
      if (!settings.require_majority || !m.has_computed(roster)) continue;
      if (computed.emplace(roster.epoch, wire_epoch(roster)).first->second != wire_epoch(roster))
        problems.push_back(concat("two parts of a split group have computed in epoch ", roster.epoch));
    }
    if (!cluster.alive(p)) continue;
    const auto text = concat("process ", p);
    if (!m.finished()) problems.push_back(text + " did not finish");
    if (!only_processes_fail(plan)) continue;
    const bool minority = m.ended() && m.end_status().code() == Code::unavailable && may_lack_majority(plan, settings);
    if (m.ended() && !minority && !was_stopped(plan, p))
      problems.push_back(text + " was removed although it was never silent: " + m.end_status().to_string());
    if (m.ended()) continue;
    if (last && *last != m.rosters().back()) problems.push_back(text + " is in another group than others");
    last = m.rosters().back();
  }
}

}  // namespace

ReformReport run_reforming(Cluster& cluster, const FaultPlan& plan, const ReformSettings& settings, Nanos limit,
                           std::vector<std::string>& problems) {
  std::vector<std::unique_ptr<Member>> members;
  for (PeerIndex p = 0; p < cluster.size(); ++p) {
    const auto report = [&problems, p](const std::string& what) { problems.push_back(concat("process ", p, ": ", what)); };
    members.push_back(std::make_unique<Member>(cluster, p, settings, report));
  }
  cluster.on_progress([&](PeerIndex process) { members[process]->proceed(); });
  for (PeerIndex p = 0; p < cluster.size(); ++p) {
    cluster.at(0, [&members, &cluster, p] {
      if (cluster.alive(p)) members[p]->proceed();
    });
  }
  cluster.run_until(limit);
  check_rosters(members, cluster, plan, settings, problems);
  ReformReport total;
  for (const auto& member : members) {
    const auto counts = member->report();
    total.operations_ok += counts.operations_ok;
    total.operations_failed += counts.operations_failed;
    total.epochs = std::max(total.epochs, counts.epochs);
    total.removed += member->ended();
    total.ended_at = std::max(total.ended_at, counts.ended_at);
  }
  cluster.on_progress(nullptr);
  for (PeerIndex p = 0; p < cluster.size(); ++p) {
    cluster.engine(p).on_control(nullptr);
    cluster.engine(p).on_lost(nullptr);
    cluster.engine(p).on_removed(nullptr);
  }
  return total;
}

}  // namespace unisono::sim

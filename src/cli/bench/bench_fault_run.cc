#include "cli/bench/bench_fault_run.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>

#include "cli/bench/bench_subject.h"
#include "cli/common/monotonic.h"

namespace unisono::cli {
namespace {

constexpr uint64_t operations_after_min = 10;

bool kills(const InjectedFault& injected, uint32_t member) {
  return injected.fault.kind == FaultKind::kill && injected.fault.rank == member;
}

class FaultRun {
 public:
  FaultRun(Group& group, EmulatedRank& emulated_rank, const FaultRunOptions& options, const FaultRunListener& listener)
      : group_(group),
        emulated_rank_(emulated_rank),
        options_(options),
        listener_(listener),
        self_(group.rank()),
        members_(group.world_size()) {
    std::iota(members_.begin(), members_.end(), 0u);
    outcome_.started = group.world_size();
  }
  Result<FaultRunEnd> run();

 private:
  Status work();
  Status operate(Subject& subject);
  Result<bool> goes_on();
  Result<FaultRunEnd> go_on_without(const Status& status);
  void gather_witnesses(Failure& failure);
  void take_injected_faults();
  void note_faults();
  void report_faults();
  void close_stretch(bool reporting);
  bool reports() const { return group_.rank() == 0; }
  bool reports_for_broken_group() const;
  Nanos now() const { return monotonic_now() - options_.zero; }

  Group& group_;
  EmulatedRank& emulated_rank_;
  const FaultRunOptions& options_;
  const FaultRunListener& listener_;
  const uint32_t self_;                // as the group formed
  std::vector<uint32_t> members_;      // of each rank now: its number as the group formed
  std::vector<InjectedFault> faults_;  // so far
  size_t reported_ = 0;                // of these, to the listener
  std::vector<double> durations_us_;
  Stretch stretch_;
  uint64_t wrong_here_ = 0;  // elements of this rank that are not accounted for yet
  uint32_t failures_ = 0;
  FaultRunOutcome outcome_;
};

// The emulator notifies ranks just before a fault. A rank that is to be killed waits for that, and does not report its own
// death: the next rank 0 does.
void FaultRun::take_injected_faults() {
  const auto fresh = emulated_rank_.injected_faults();
  faults_.insert(faults_.end(), fresh.begin(), fresh.end());
  const bool doomed =
      std::any_of(fresh.begin(), fresh.end(), [&](const InjectedFault& injected) { return kills(injected, self_); });
  if (doomed) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// A fault ends the stretch, so that operations before and after it are shown apart. A rank other than 0 forgets faults of which
// it was notified a whole operation ago: rank 0 has reported them, unless the fault killed rank 0.
void FaultRun::note_faults() {
  const auto known = faults_.size();
  take_injected_faults();
  if (reports() && reported_ < faults_.size()) {
    close_stretch(true);
    report_faults();
    return;
  }
  const auto reported = reported_;
  while (!reports() && reported_ < known && !kills(faults_[reported_], members_[0])) ++reported_;
  if (reported_ > reported) close_stretch(false);
}

void FaultRun::report_faults() {
  for (; reported_ < faults_.size(); ++reported_) listener_.on_fault(faults_[reported_], faults_[reported_].at - options_.zero);
}

void FaultRun::close_stretch(bool reporting) {
  stretch_.timing = summarise(durations_us_);
  if (reporting && stretch_.operations > 0) listener_.on_stretch(stretch_);
  durations_us_.clear();
  stretch_ = {.from = now(), .to = now(), .world_size = group_.world_size(), .contributors = group_.world_size(), .timing = {}};
}

// One small sum: whether rank 0 wants another operation, and the wrong elements of all ranks.
Result<bool> FaultRun::goes_on() {
  const bool wanted = now() < options_.until || outcome_.after < operations_after_min;
  std::array<uint64_t, 2> sums{group_.rank() == 0 && wanted ? 1u : 0u, wrong_here_};
  auto done = group_.all_reduce(std::span<uint64_t>(sums), {.timeout = options_.call.timeout});
  if (!done.ok()) return done.status();
  wrong_here_ = 0;
  stretch_.wrong += sums[1];
  outcome_.wrong += sums[1];
  return sums[0] > 0;
}

Status FaultRun::operate(Subject& subject) {
  if (options_.check) subject.fill();
  const auto start = monotonic_now();
  auto done = subject.call();
  const auto end = monotonic_now();
  if (!done.ok()) return done.status();
  durations_us_.push_back(static_cast<double>(end - start) / static_cast<double>(microsecond));
  if (options_.check) wrong_here_ += subject.wrong();
  stretch_.contributors = std::min(stretch_.contributors, done->contributors);
  stretch_.to = end - options_.zero;
  ++stretch_.operations;
  ++outcome_.operations;
  ++outcome_.after;
  return {};
}

// Returns when rank 0 wants no more operations (ok), or with the first failure.
Status FaultRun::work() {
  auto data = options_.data;
  data.world_size = group_.world_size();
  Subject subject(group_, {data, options_.call, extent_of(data.collective, options_.bytes, data.dtype, data.world_size),
                           options_.in_place});
  if (auto status = subject.allocate(); !status.ok()) return status;
  subject.fill();
  stretch_ = {.from = now(), .to = now(), .world_size = data.world_size, .contributors = data.world_size, .timing = {}};
  while (true) {
    auto more = goes_on();
    if (!more.ok()) return more.status();
    if (!*more) return {};
    note_faults();
    if (auto status = operate(subject); !status.ok()) return status;
  }
}

// If the group does not re-form, the first rank that is neither dead nor stopped reports what happened.
bool FaultRun::reports_for_broken_group() const {
  for (const auto member : members_) {
    if (member == self_) return true;
    const auto last = std::find_if(faults_.rbegin(), faults_.rend(),
                                   [&](const InjectedFault& injected) { return injected.fault.rank == member; });
    if (last == faults_.rend() || last->fault.kind == FaultKind::resume) return false;
  }
  return true;
}

// If a member is lost meanwhile, this rank's own message and times stay, and the next operation fails.
void FaultRun::gather_witnesses(Failure& failure) {
  const auto own = witness_of(failure);
  std::vector<Witness> all(group_.world_size());
  auto done =
      group_.all_gather(ConstTensor(&own, sizeof(own), DType::u8), Tensor(all.data(), all.size() * sizeof(own), DType::u8), {},
                        {.timeout = options_.call.timeout});
  if (done.ok()) settle(failure, all);
}

Result<FaultRunEnd> FaultRun::go_on_without(const Status& status) {
  Failure failure{
      .at = now(), .operation = outcome_.operations + 1, .status = status, .cause = {}, .before = members_, .members = {}};
  take_injected_faults();
  const auto harmful = std::find_if(faults_.rbegin(), faults_.rend(),
                                    [](const InjectedFault& injected) { return injected.fault.kind != FaultKind::resume; });
  if (harmful != faults_.rend()) {
    failure.cause = harmful->fault;
    failure.noticed_after = failure.at + options_.zero - harmful->at;
  }
  const bool was_stopped =
      std::any_of(faults_.begin(), faults_.end(), [&](const InjectedFault& injected) { return injected.fault.rank == self_; });
  outcome_.after = 0;
  bool reporting = reports_for_broken_group() && !was_stopped;
  if (options_.reform) {
    auto reformed = group_.reform();
    if (!reformed.ok() && was_stopped) return FaultRunEnd::left_out;
    if (!reformed.ok()) return reformed.status();
    // A rank that was stopped and finds no other member comes too late: the others have finished.
    if (was_stopped && reformed->world_size == 1) return FaultRunEnd::left_out;
    std::vector<uint32_t> lost;
    for (const auto& member : reformed->lost) lost.push_back(members_[member.rank]);
    std::erase_if(members_, [&](uint32_t member) { return std::find(lost.begin(), lost.end(), member) != lost.end(); });
    failure.reformed = true;
    failure.reform_time = reformed->total_us * microsecond;
    failure.epoch = reformed->epoch;
    failure.members = members_;
    gather_witnesses(failure);
    reporting = reports();
  }
  if (reporting) {
    close_stretch(true);
    report_faults();
    listener_.on_failure(failure);
  }
  reported_ = faults_.size();
  outcome_.left = static_cast<uint32_t>(members_.size());
  outcome_.went_on = options_.reform;
  if (!options_.reform && reporting) listener_.on_outcome(outcome_);
  durations_us_.clear();
  return options_.reform ? FaultRunEnd::went_on : was_stopped ? FaultRunEnd::left_out : FaultRunEnd::gave_up;
}

Result<FaultRunEnd> FaultRun::run() {
  while (true) {
    const auto ended = work();
    if (ended.ok()) break;
    const bool known = ended.code() == Code::peer_lost || ended.code() == Code::late;
    if (!known || ++failures_ > options_.failures_max) return ended;
    auto end = go_on_without(ended);
    if (!end.ok() || *end != FaultRunEnd::went_on) return end;
  }
  outcome_.left = group_.world_size();
  if (reports()) {
    note_faults();
    close_stretch(true);
    listener_.on_outcome(outcome_);
  }
  return outcome_.wrong == 0 ? FaultRunEnd::went_on : FaultRunEnd::went_wrong;
}

}  // namespace

Witness witness_of(const Failure& failure) {
  Witness out{.at = failure.at,
              .noticed_after = failure.noticed_after,
              .reform_time = failure.reform_time,
              .code = failure.status.code()};
  failure.status.message().copy(out.message.data(), out.message.size() - 1);
  return out;
}

void settle(Failure& failure, std::span<const Witness> witnesses) {
  const auto first =
      std::min_element(witnesses.begin(), witnesses.end(), [](const Witness& a, const Witness& b) { return a.at < b.at; });
  failure.status = Status(first->code, first->message.data());
  for (const auto& witness : witnesses) {
    failure.noticed_after = std::max(failure.noticed_after, witness.noticed_after);
    failure.reform_time = std::max(failure.reform_time, witness.reform_time);
  }
}

Result<FaultRunEnd> run_with_faults(Group& group, EmulatedRank& emulated_rank, const FaultRunOptions& options,
                                    const FaultRunListener& listener) {
  return FaultRun(group, emulated_rank, options, listener).run();
}

}  // namespace unisono::cli

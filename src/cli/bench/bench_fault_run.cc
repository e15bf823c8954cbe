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
  Result<bool> agree_to_continue();
  Result<FaultRunEnd> continue_without(const Status& status);
  void gather_survivor_records(Failure& failure);
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
  const uint32_t self_;                // this process's rank when the group first formed
  std::vector<uint32_t> members_;      // members_[rank]: the rank that this member had when the group first formed
  std::vector<InjectedFault> faults_;  // all faults that have been injected so far
  uint64_t since_fault_ = 0;           // number of operations since this rank heard of a fault
  size_t reported_ = 0;                // the listener has been told about this many of the faults
  std::vector<double> durations_us_;
  Stretch stretch_;
  uint64_t local_wrong_ = 0;  // number of this rank's wrong elements that agree_to_continue() has not added up yet
  uint32_t failures_ = 0;
  FaultRunOutcome outcome_;
};

// The link emulator notifies all ranks just before it injects a fault. If the fault kills this rank, the rank waits here for
// its death, and so does not report the fault. The process that becomes rank 0 afterwards reports it.
void FaultRun::take_injected_faults() {
  const auto fresh = emulated_rank_.injected_faults();
  faults_.insert(faults_.end(), fresh.begin(), fresh.end());
  if (!fresh.empty()) since_fault_ = 0;
  const bool is_victim =
      std::any_of(fresh.begin(), fresh.end(), [&](const InjectedFault& injected) { return kills(injected, self_); });
  if (is_victim) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// A fault ends the current stretch (operations with equal outcomes), so the operations before and after the fault are shown
// separately. Rank 0 reports the fault. Any other rank assumes, when it makes its next call, that rank 0 has reported the
// earlier faults. There is one exception: a fault that killed rank 0 is reported by the next rank 0.
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

// Runs one small all-reduce. It adds up the numbers of wrong elements of all ranks, and tells every rank whether rank 0 wants
// another operation.
Result<bool> FaultRun::agree_to_continue() {
  const bool wanted = wants_more(
      options_, {.now = now(), .faults = faults_.size(), .since_fault = since_fault_, .since_failure = outcome_.after});
  std::array<uint64_t, 2> sums{group_.rank() == 0 && wanted ? 1u : 0u, local_wrong_};
  auto done = group_.all_reduce(std::span<uint64_t>(sums), {.timeout = options_.call.timeout});
  if (!done.ok()) return done.status();
  local_wrong_ = 0;
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
  if (options_.check) local_wrong_ += subject.wrong();
  stretch_.contributors = std::min(stretch_.contributors, done->contributors);
  stretch_.to = end - options_.zero;
  ++stretch_.operations;
  ++outcome_.operations;
  ++outcome_.after;
  ++since_fault_;
  return {};
}

// Runs operations until one fails or rank 0 wants no more. Returns the status of the failed operation, or ok.
Status FaultRun::work() {
  auto data = options_.data;
  data.world_size = group_.world_size();
  Subject subject(group_, {data, options_.call, extent_of(data.collective, options_.bytes, data.dtype, data.world_size),
                           options_.in_place});
  if (auto status = subject.allocate(); !status.ok()) return status;
  subject.fill();
  stretch_ = {.from = now(), .to = now(), .world_size = data.world_size, .contributors = data.world_size, .timing = {}};
  while (true) {
    auto more = agree_to_continue();
    if (!more.ok()) return more.status();
    if (!*more) return {};
    note_faults();
    if (auto status = operate(subject); !status.ok()) return status;
  }
}

// Returns whether this rank must report that the group cannot re-form. The first rank that is neither dead nor stopped reports
// it.
bool FaultRun::reports_for_broken_group() const {
  for (const auto member : members_) {
    if (member == self_) return true;
    const auto last = std::find_if(faults_.rbegin(), faults_.rend(),
                                   [&](const InjectedFault& injected) { return injected.fault.rank == member; });
    if (last == faults_.rend() || last->fault.kind == FaultKind::resume) return false;
  }
  return true;
}

// Exchanges the error messages and times of the survivors. If another member is lost during the exchange, `failure` keeps only
// the message and times of this rank, and the next operation then fails.
void FaultRun::gather_survivor_records(Failure& failure) {
  const auto own = survivor_record_of(failure);
  std::vector<SurvivorRecord> all(group_.world_size());
  auto done =
      group_.all_gather(ConstTensor(&own, sizeof(own), DType::u8), Tensor(all.data(), all.size() * sizeof(own), DType::u8), {},
                        {.timeout = options_.call.timeout});
  if (done.ok()) settle(failure, all);
}

Result<FaultRunEnd> FaultRun::continue_without(const Status& status) {
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
    if (!reformed.ok() && was_stopped) return FaultRunEnd::excluded;
    if (!reformed.ok()) return reformed.status();
    // This rank was stopped, and now it is alone in its group. It was resumed too late: the other ranks have finished.
    if (was_stopped && reformed->world_size == 1) return FaultRunEnd::excluded;
    std::vector<uint32_t> lost;
    for (const auto& member : reformed->lost) lost.push_back(members_[member.rank]);
    std::erase_if(members_, [&](uint32_t member) { return std::find(lost.begin(), lost.end(), member) != lost.end(); });
    failure.reformed = true;
    failure.reform_time = reformed->total_us * microsecond;
    failure.epoch = reformed->epoch;
    failure.members = members_;
    gather_survivor_records(failure);
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
  return options_.reform ? FaultRunEnd::continued : was_stopped ? FaultRunEnd::excluded : FaultRunEnd::aborted;
}

Result<FaultRunEnd> FaultRun::run() {
  while (true) {
    const auto ended = work();
    if (ended.ok()) break;
    const bool known = ended.code() == Code::peer_lost || ended.code() == Code::late;
    if (!known || ++failures_ > options_.failures_max) return ended;
    auto end = continue_without(ended);
    if (!end.ok() || *end != FaultRunEnd::continued) return end;
  }
  outcome_.left = group_.world_size();
  if (reports()) {
    note_faults();
    close_stretch(true);
    listener_.on_outcome(outcome_);
  }
  return outcome_.wrong == 0 ? FaultRunEnd::continued : FaultRunEnd::wrong_results;
}

}  // namespace

bool wants_more(const FaultRunOptions& options, const FaultRunProgress& progress) {
  return progress.now < options.until || progress.faults < options.faults ||
         std::min(progress.since_fault, progress.since_failure) < operations_after_min;
}

SurvivorRecord survivor_record_of(const Failure& failure) {
  SurvivorRecord out{.at = failure.at,
                     .noticed_after = failure.noticed_after,
                     .reform_time = failure.reform_time,
                     .code = failure.status.code()};
  failure.status.message().copy(out.message.data(), out.message.size() - 1);
  return out;
}

void settle(Failure& failure, std::span<const SurvivorRecord> records) {
  const auto first = std::min_element(records.begin(), records.end(),
                                      [](const SurvivorRecord& a, const SurvivorRecord& b) { return a.at < b.at; });
  failure.status = Status(first->code, first->message.data());
  for (const auto& record : records) {
    failure.noticed_after = std::max(failure.noticed_after, record.noticed_after);
    failure.reform_time = std::max(failure.reform_time, record.reform_time);
  }
}

Result<FaultRunEnd> run_with_faults(Group& group, EmulatedRank& emulated_rank, const FaultRunOptions& options,
                                    const FaultRunListener& listener) {
  return FaultRun(group, emulated_rank, options, listener).run();
}

}  // namespace unisono::cli

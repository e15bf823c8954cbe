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

bool kills(const FaultNews& news, uint32_t member) { return news.fault.kind == FaultKind::kill && news.fault.rank == member; }

class FaultRun {
 public:
  FaultRun(Group& group, EmulatedRank& rank_end, const FaultRunOptions& options, const FaultRunListener& listener)
      : group_(group),
        rank_end_(rank_end),
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
  void hear_witnesses(FaultEvent& fault_event);
  void take_news();
  void hear();
  void tell_faults();
  void close_stretch(bool tells);
  bool speaks() const { return group_.rank() == 0; }
  bool speaks_for_the_broken() const;
  Nanos now() const { return monotonic_now() - options_.zero; }

  Group& group_;
  EmulatedRank& rank_end_;
  const FaultRunOptions& options_;
  const FaultRunListener& listener_;
  const uint32_t self_;            // as the group formed
  std::vector<uint32_t> members_;  // of each rank now: its number as the group formed
  std::vector<FaultNews> faults_;  // so far
  size_t told_ = 0;                // of these, to the listener
  std::vector<double> durations_us_;
  Stretch stretch_;
  uint64_t wrong_here_ = 0;  // elements of this rank that are not accounted for yet
  uint32_t fault_events_ = 0;
  FaultRunOutcome outcome_;
};

// News of a fault come just before it. Who is to be killed waits for that, and does not tell of its own death: the next rank 0
// will.
void FaultRun::take_news() {
  const auto fresh = rank_end_.news();
  faults_.insert(faults_.end(), fresh.begin(), fresh.end());
  const bool doomed = std::any_of(fresh.begin(), fresh.end(), [&](const FaultNews& news) { return kills(news, self_); });
  if (doomed) std::this_thread::sleep_for(std::chrono::seconds(1));
}

// Faults end the stretch, so that what comes after one is seen apart. Another rank than 0 forgets what it heard a whole
// operation ago: rank 0 has told of that, and only if it dies before does somebody else have to. Of its own death it does not
// tell.
void FaultRun::hear() {
  const auto heard = faults_.size();
  take_news();
  if (speaks() && told_ < faults_.size()) {
    close_stretch(true);
    tell_faults();
    return;
  }
  const auto told = told_;
  while (!speaks() && told_ < heard && !kills(faults_[told_], members_[0])) ++told_;
  if (told_ > told) close_stretch(false);
}

void FaultRun::tell_faults() {
  for (; told_ < faults_.size(); ++told_) listener_.on_fault(faults_[told_], faults_[told_].at - options_.zero);
}

void FaultRun::close_stretch(bool tells) {
  stretch_.timing = summarise(durations_us_);
  if (tells && stretch_.operations > 0) listener_.on_stretch(stretch_);
  durations_us_.clear();
  stretch_ = {.from = now(), .to = now(), .world_size = group_.world_size(), .contributors = group_.world_size(), .timing = {}};
}

// What rank 0 wants, and all ranks' wrong elements, in one small sum.
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

// Until rank 0 has had enough, or something fails.
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
    hear();
    if (auto status = operate(subject); !status.ok()) return status;
  }
}

// Where the group is broken for good, the first rank that is neither dead nor stopped says what happened.
bool FaultRun::speaks_for_the_broken() const {
  for (const auto member : members_) {
    if (member == self_) return true;
    const auto last =
        std::find_if(faults_.rbegin(), faults_.rend(), [&](const FaultNews& news) { return news.fault.rank == member; });
    if (last == faults_.rend() || last->fault.kind == FaultKind::resume) return false;
  }
  return true;
}

// If a member is lost meanwhile, this rank's own words and times stay, and the next operation fails.
void FaultRun::hear_witnesses(FaultEvent& fault_event) {
  const auto own = witness_of(fault_event);
  std::vector<Witness> all(group_.world_size());
  auto done =
      group_.all_gather(ConstTensor(&own, sizeof(own), DType::u8), Tensor(all.data(), all.size() * sizeof(own), DType::u8), {},
                        {.timeout = options_.call.timeout});
  if (done.ok()) settle(fault_event, all);
}

Result<FaultRunEnd> FaultRun::go_on_without(const Status& status) {
  FaultEvent fault_event{
      .at = now(), .operation = outcome_.operations + 1, .status = status, .cause = {}, .before = members_, .members = {}};
  take_news();
  const auto harmful = std::find_if(faults_.rbegin(), faults_.rend(),
                                    [](const FaultNews& news) { return news.fault.kind != FaultKind::resume; });
  if (harmful != faults_.rend()) {
    fault_event.cause = harmful->fault;
    fault_event.told_after = fault_event.at + options_.zero - harmful->at;
  }
  const bool was_stopped =
      std::any_of(faults_.begin(), faults_.end(), [&](const FaultNews& news) { return news.fault.rank == self_; });
  outcome_.after = 0;
  bool tells = speaks_for_the_broken() && !was_stopped;
  if (options_.reform) {
    auto reformed = group_.reform();
    if (!reformed.ok() && was_stopped) return FaultRunEnd::left_out;
    if (!reformed.ok()) return reformed.status();
    // Who was stopped and finds nobody has come too late: the others are through.
    if (was_stopped && reformed->world_size == 1) return FaultRunEnd::left_out;
    std::vector<uint32_t> lost;
    for (const auto& member : reformed->lost) lost.push_back(members_[member.rank]);
    std::erase_if(members_, [&](uint32_t member) { return std::find(lost.begin(), lost.end(), member) != lost.end(); });
    fault_event.reformed = true;
    fault_event.reform_time = reformed->total_us * microsecond;
    fault_event.epoch = reformed->epoch;
    fault_event.members = members_;
    hear_witnesses(fault_event);
    tells = speaks();
  }
  if (tells) {
    close_stretch(true);
    tell_faults();
    listener_.on_fault_event(fault_event);
  }
  told_ = faults_.size();
  outcome_.left = static_cast<uint32_t>(members_.size());
  outcome_.went_on = options_.reform;
  if (!options_.reform && tells) listener_.on_outcome(outcome_);
  durations_us_.clear();
  return options_.reform ? FaultRunEnd::went_on : was_stopped ? FaultRunEnd::left_out : FaultRunEnd::gave_up;
}

Result<FaultRunEnd> FaultRun::run() {
  while (true) {
    const auto ended = work();
    if (ended.ok()) break;
    const bool known = ended.code() == Code::peer_lost || ended.code() == Code::late;
    if (!known || ++fault_events_ > options_.fault_events_max) return ended;
    auto end = go_on_without(ended);
    if (!end.ok() || *end != FaultRunEnd::went_on) return end;
  }
  outcome_.left = group_.world_size();
  if (speaks()) {
    hear();
    close_stretch(true);
    listener_.on_outcome(outcome_);
  }
  return outcome_.wrong == 0 ? FaultRunEnd::went_on : FaultRunEnd::went_wrong;
}

}  // namespace

Witness witness_of(const FaultEvent& fault_event) {
  Witness out{.at = fault_event.at,
              .told_after = fault_event.told_after,
              .reform_time = fault_event.reform_time,
              .code = fault_event.status.code()};
  fault_event.status.message().copy(out.message.data(), out.message.size() - 1);
  return out;
}

void settle(FaultEvent& fault_event, std::span<const Witness> witnesses) {
  const auto first =
      std::min_element(witnesses.begin(), witnesses.end(), [](const Witness& a, const Witness& b) { return a.at < b.at; });
  fault_event.status = Status(first->code, first->message.data());
  for (const auto& witness : witnesses) {
    fault_event.told_after = std::max(fault_event.told_after, witness.told_after);
    fault_event.reform_time = std::max(fault_event.reform_time, witness.reform_time);
  }
}

Result<FaultRunEnd> undergo(Group& group, EmulatedRank& rank_end, const FaultRunOptions& options,
                            const FaultRunListener& listener) {
  return FaultRun(group, rank_end, options, listener).run();
}

}  // namespace unisono::cli

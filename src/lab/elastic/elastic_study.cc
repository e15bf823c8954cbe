#include "lab/elastic/elastic_study.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/concat.h"

namespace unisono::sim {
namespace {

constexpr Nanos between_starts = 2 * millisecond;
constexpr uint64_t events_between_progress = 1 << 16;

std::vector<float> first_values(uint32_t index, size_t elements, uint64_t seed) {
  std::vector<float> values(elements);
  Random random(mix64(seed ^ (uint64_t{index} + 1)));
  for (auto& value : values) value = static_cast<float>(2 * random.unit() - 1);
  return values;
}

using ProgressCall = std::function<void(const ElasticStudyProgress&)>;

class Study {
 public:
  Study(const ElasticStudyOptions& options, const ProgressCall& progress)
      : options_(options), progress_(progress), random_(mix64(options.cluster.seed ^ 0x57d1)), cluster_(with_watch(options)) {
    cluster_.initial = [this](uint32_t index) {
      return first_values(index, options_.cluster.settings.elements, options_.cluster.seed);
    };
    // As in training, the values of the peers move apart between averaging steps.
    cluster_.prepare = [this](uint32_t index, std::vector<float>& values) {
      if (result_.formed == 0) result_.formed = cluster_.now();
      Random random(mix64(random_.next() ^ index));
      for (auto& value : values) value += static_cast<float>((2 * random.unit() - 1) * 0.1);
      return 1.0;
    };
    cluster_.on_step = [this](uint32_t index, const FinishedStep& step) { step_ended(index, step.report); };
    cluster_.on_loaded = [this](uint32_t, const ElasticState&) { ++result_.loaded; };
    if (options_.trace.events.empty()) {
      for (uint32_t peer = 0; peer < options_.peers; ++peer) join(peer, peer * between_starts);
    } else {
      bool at_first = true;  // true: the event is one of the joins at the beginning of the run
      for (const auto& event : options_.trace.events) {
        at_first = at_first && event.at == 0 && event.action == ChurnAction::join;
        if (at_first) {
          join(event.peer, event.peer * between_starts);
          continue;
        }
        ++result_.events_left;
        cluster_.network().at(event.at, [this, event] { follow(event); });
      }
    }
    // If `until` is set, the run does not end before the averaging step that is in progress at this time has ended.
    if (options_.until > 0)
      cluster_.network().at(options_.until, [this] { steps_to_end_ = std::max(steps_to_end_, steps_ + 1), changed_ = true; });
  }

  ElasticStudyResult run() {
    result_.completed = cluster_.run(options_.limit, [this] {
      if (++events_ % events_between_progress == 0) report_progress();
      return std::exchange(changed_, false) && all_done();
    });
    result_.ended = cluster_.now();
    result_.messages = cluster_.network().messages();
    result_.bytes = cluster_.network().bytes();
    result_.replay = replay_.counts();
    for (const auto& [name, index] : slots_) {
      const auto& status = cluster_.peer(index)->join_status();
      if (!status.ok() && result_.problem.empty()) result_.problem = concat("peer ", name, " did not join: ", status.message());
    }
    std::ranges::sort(result_.seconds);
    return std::move(result_);
  }

 private:
  ElasticClusterOptions with_watch(const ElasticStudyOptions& options) {
    auto cluster = options.cluster;
    cluster.settings.watch = &replay_;
    return cluster;
  }

  void join(uint32_t name, Nanos at) {
    const auto index = cluster_.add(at);
    slots_[name] = index;
    ended_.resize(index + 1, 0);
    starts_.resize(index + 1, at);
    ++result_.joins;
    note_present();
  }
  void follow(const ChurnEvent& event) {
    changed_ = true;
    --result_.events_left;
    if (event.action == ChurnAction::join) return join(event.peer, cluster_.now());
    const auto index = slots_.at(event.peer);
    switch (event.action) {
      case ChurnAction::kill:
        ++result_.kills;
        kill(index);
        slots_.erase(event.peer);
        break;
      case ChurnAction::leave:
        ++result_.leaves;
        leave(index);
        slots_.erase(event.peer);
        break;
      case ChurnAction::stop: stop(index); break;
      default: resume(index);
    }
    note_present();
  }
  void kill(uint32_t index) {
    stop_counts_.erase(index);
    replay_.gone(cluster_.id_of(index));
    cluster_.kill(index);
  }
  void leave(uint32_t index) {
    // the peer has sent nothing yet, so the other peers do not know it
    if (cluster_.now() < starts_[index]) return kill(index);
    if (stop_counts_.contains(index)) leave_on_resume_.insert(index);
    else cluster_.leave(index);
  }
  // Both the trace and absences can stop a peer. It continues when resume() has been called for each stop.
  void stop(uint32_t index) {
    ++result_.stops;
    if (++stop_counts_[index] == 1) cluster_.network().stop(index);
  }
  void resume(uint32_t index) {
    const auto found = stop_counts_.find(index);
    if (found == stop_counts_.end() || --found->second > 0) return;
    stop_counts_.erase(found);
    changed_ = true;
    cluster_.network().go_on(index);
    if (leave_on_resume_.erase(index) > 0) cluster_.leave(index);
  }
  void note_present() {
    if (result_.present.empty() || result_.present.back().first < cluster_.now())
      result_.present.emplace_back(cluster_.now(), 0);
    result_.present.back().second = static_cast<uint32_t>(slots_.size());
  }

  void step_ended(uint32_t index, const AveragingReport& report) {
    changed_ = true;
    ++result_.steps;
    result_.exact += report.exact ? 1 : 0;
    result_.seconds.push_back(report.seconds);
    auto& tally = result_.by_step[report.step];
    if (tally.peers++ == 0) tally.first_ended = cluster_.now();
    tally.exact += report.exact ? 1 : 0;
    tally.ended = cluster_.now();
    tally.seconds_mean += (report.seconds - tally.seconds_mean) / static_cast<double>(tally.peers);
    tally.seconds_max = std::max(tally.seconds_max, report.seconds);
    for (const auto& round : report.rounds) ++result_.outcomes[round.outcome];
    if (!report.rounds.empty())
      tally.spread += (std::sqrt(std::max(0.0, report.rounds[0].variance)) - tally.spread) / static_cast<double>(tally.peers);
    ended_[index] = report.step + 1;
    step_seconds_ += (report.seconds - step_seconds_) / 64;
    if (report.step + 1 > steps_) {
      steps_ = report.step + 1;
      report_progress();
    }
    for (size_t round = 0; options_.absence > 0 && round < report.rounds.size(); ++round) {
      if (random_.unit() < options_.absence) stop_for_absence(index);
    }
  }
  // Stops the peer for the time `away`. The stop begins at a random time while the peer computes, or in its next averaging
  // step.
  void stop_for_absence(uint32_t index) {
    const auto moment =
        static_cast<Nanos>(random_.unit() * (static_cast<double>(options_.cluster.compute) + step_seconds_ * 1e9));
    auto& network = cluster_.network();
    network.at(network.now() + moment, [this, index] {
      if (!cluster_.network().alive(index)) return;
      stop(index);
      cluster_.network().at(cluster_.now() + options_.away, [this, index] { resume(index); });
    });
  }
  void report_progress() const {
    if (progress_) progress_({.steps = steps_, .now = cluster_.now(), .present = static_cast<uint32_t>(slots_.size())});
  }
  // True if the run may end. The run does not wait for peers that are stopped, nor for peers that could not join.
  bool all_done() {
    if (steps_ < steps_to_end_ || cluster_.now() < options_.until) return false;
    return std::ranges::all_of(slots_, [&](const auto& slot) {
      return stop_counts_.contains(slot.second) || ended_[slot.second] >= steps_to_end_ ||
             !cluster_.peer(slot.second)->join_status().ok();
    });
  }

  const ElasticStudyOptions& options_;
  const ProgressCall& progress_;
  Random random_;
  ElasticReplay replay_;
  ElasticCluster cluster_;
  ElasticStudyResult result_;
  // By number of the peer in the trace: the index of its process. A peer that is away has no entry.
  std::map<uint32_t, uint32_t> slots_;
  std::vector<uint64_t> ended_;               // by process: 1 + number of the last averaging step that the process ended
  std::vector<Nanos> starts_;                 // by process: the time when it started
  std::map<uint32_t, uint32_t> stop_counts_;  // by process: how many stops (by the trace or by absences) still hold it
  std::set<uint32_t> leave_on_resume_;        // processes that will leave as soon as they continue
  uint64_t steps_ = 0;                        // number of averaging steps that at least one peer has ended
  uint64_t steps_to_end_ = options_.steps;    // number of averaging steps that every peer must end
  uint64_t events_ = 0;
  double step_seconds_ = 0.02;  // smoothed duration of an averaging step, in seconds
  bool changed_ = false;
};

}  // namespace

Status check(const ElasticStudyOptions& options) {
  const auto& settings = options.cluster.settings;
  if (options.peers < 1 || options.peers > churn_peers_max)
    return {Code::invalid, concat("peers is ", options.peers, ": 1 to ", churn_peers_max)};
  if (options.steps < 1) return {Code::invalid, "averaging steps is 0: at least 1"};
  if (settings.elements < 1) return {Code::invalid, "elements is 0: at least 1"};
  if (!(options.absence >= 0 && options.absence < 1))
    return {Code::invalid, concat("absence is ", options.absence, ": 0 to below 1")};
  if (options.away < millisecond || options.limit < second) return {Code::invalid, "away is at least 1 ms, limit at least 1 s"};
  if (options.until < 0 || options.until >= options.limit) return {Code::invalid, "until must be at least 0 and below limit"};
  if (const auto parsed = ChurnTrace::parse(options.trace.to_text()); !parsed.ok())
    return {Code::invalid, "trace, " + parsed.status().message()};
  if (settings.commit != CommitRule::agreed || !(settings.contribute == StepCodec()) || !(settings.result == StepCodec()))
    return {Code::invalid, "a study needs CommitRule::agreed, and plain values as contributions and results"};
  return settings.times.check();
}

Result<ElasticStudyResult> study_elastic(const ElasticStudyOptions& options,
                                         const std::function<void(const ElasticStudyProgress&)>& progress) {
  if (auto checked = check(options); !checked.ok()) return checked;
  return Study(options, progress).run();
}

}  // namespace unisono::sim

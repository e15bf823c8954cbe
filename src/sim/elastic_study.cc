#include "sim/elastic_study.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace unisono::sim {
namespace {

constexpr Nanos between_starts = 2 * millisecond;

std::vector<float> first_values(uint32_t index, size_t elements, uint64_t seed) {
  std::vector<float> values(elements);
  Random random(mix64(seed ^ (uint64_t{index} + 1)));
  for (auto& value : values) value = static_cast<float>(2 * random.unit() - 1);
  return values;
}

class Study {
 public:
  Study(const ElasticStudyOptions& options, const std::function<void(uint64_t)>& progress) : options_(options), progress_(progress), random_(mix64(options.cluster.seed ^ 0x57d1)), cluster_(with_watch(options)) {
    cluster_.initial = [this](uint32_t index) { return first_values(index, options_.cluster.settings.elements, options_.cluster.seed); };
    // Training moves what each has apart again.
    cluster_.prepare = [this](uint32_t index, std::vector<float>& values) {
      if (result_.formed == 0) result_.formed = cluster_.now();
      Random random(mix64(random_.next() ^ index));
      for (auto& value : values) value += static_cast<float>((2 * random.unit() - 1) * 0.1);
      return 1.0;
    };
    cluster_.on_sweep = [this](uint32_t index, const FinishedSweep& sweep) { swept(index, sweep.report); };
    cluster_.on_loaded = [this](uint32_t, const ElasticState&) { ++result_.loaded; };
    if (options_.trace.events.empty()) {
      for (uint32_t peer = 0; peer < options_.peers; ++peer) join(peer, peer * between_starts);
    } else {
      for (const auto& event : options_.trace.events) {
        if (event.action == ChurnAction::join && event.at == 0) join(event.peer, event.peer * between_starts);
        else cluster_.network().at(event.at, [this, event] { follow(event); });
      }
    }
  }

  ElasticStudyResult run() {
    result_.completed = cluster_.run(options_.limit, [this] { return std::exchange(changed_, false) && all_done(); });
    result_.ended = cluster_.now();
    result_.messages = cluster_.network().messages();
    result_.bytes = cluster_.network().bytes();
    result_.replay = replay_.counts();
    for (const auto& [name, index] : slots_) {
      const auto& status = cluster_.peer(index)->join_status();
      if (!status.ok()) result_.problem = "peer " + std::to_string(name) + " did not join: " + status.message();
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
    ++result_.joins;
    note_present(at);
  }
  void follow(const ChurnEvent& event) {
    changed_ = true;
    if (event.action == ChurnAction::join) return join(event.peer, cluster_.now());
    const auto index = slots_.at(event.peer);
    switch (event.action) {
      case ChurnAction::kill:
        ++result_.kills;
        replay_.gone(cluster_.id_of(index));
        cluster_.kill(index);
        slots_.erase(event.peer);
        break;
      case ChurnAction::leave:
        ++result_.leaves;
        cluster_.leave(index);
        slots_.erase(event.peer);
        break;
      case ChurnAction::stop:
        ++result_.stops;
        still_.insert(index);
        cluster_.network().stop(index);
        break;
      default:
        still_.erase(index);
        cluster_.network().go_on(index);
    }
    note_present(cluster_.now());
  }
  void note_present(Nanos at) { result_.present.emplace_back(at, static_cast<uint32_t>(slots_.size())); }

  void swept(uint32_t index, const SweepReport& report) {
    changed_ = true;
    ++result_.sweeps;
    result_.exact += report.exact ? 1 : 0;
    result_.seconds.push_back(report.seconds);
    auto& tally = result_.by_sweep[report.sweep];
    ++tally.peers;
    tally.exact += report.exact ? 1 : 0;
    tally.ended = cluster_.now();
    tally.seconds_max = std::max(tally.seconds_max, report.seconds);
    for (const auto& round : report.rounds) ++result_.outcomes[round.outcome];
    if (!report.rounds.empty()) tally.spread += (std::sqrt(std::max(0.0, report.rounds[0].variance)) - tally.spread) / static_cast<double>(tally.peers);
    ended_[index] = report.sweep + 1;
    usual_ += (report.seconds - usual_) / 64;
    if (report.sweep > newest_) {
      newest_ = report.sweep;
      if (progress_) progress_(newest_);
    }
    for (size_t round = 0; options_.absence > 0 && round < report.rounds.size(); ++round) {
      if (random_.unit() < options_.absence) stand_still(index);
    }
  }
  // From any moment of its next step and sweep on.
  void stand_still(uint32_t index) {
    const auto moment = static_cast<Nanos>(random_.unit() * (static_cast<double>(options_.cluster.compute) + usual_ * 1e9));
    ++result_.stops;
    auto& network = cluster_.network();
    network.at(network.now() + moment, [this, index] {
      if (!cluster_.network().alive(index) || !still_.insert(index).second) return;
      cluster_.network().stop(index);
      cluster_.network().at(cluster_.now() + options_.away, [this, index] {
        still_.erase(index);
        changed_ = true;
        if (cluster_.network().alive(index)) cluster_.network().go_on(index);
      });
    });
  }
  // Who stands still, or came lately, is not waited for.
  bool all_done() {
    if (newest_ + 1 < options_.sweeps) return false;
    return std::ranges::all_of(slots_, [&](const auto& slot) { return still_.contains(slot.second) || ended_[slot.second] >= options_.sweeps; });
  }

  const ElasticStudyOptions& options_;
  const std::function<void(uint64_t)>& progress_;
  Random random_;
  ElasticReplay replay_;
  ElasticCluster cluster_;
  ElasticStudyResult result_;
  std::map<uint32_t, uint32_t> slots_;  // of the trace's peers that are there: which process
  std::vector<uint64_t> ended_;         // by process: sweeps, by number
  std::set<uint32_t> still_;
  uint64_t newest_ = 0;                 // sweep that somebody ended
  double usual_ = 0.02;                 // seconds of a sweep, smoothed
  bool changed_ = false;
};

}  // namespace

Status check(const ElasticStudyOptions& options) {
  const auto& settings = options.cluster.settings;
  if (options.peers < 1 || options.peers > churn_peers_max) return {Code::invalid, "peers is " + std::to_string(options.peers) + ": 1 to " + std::to_string(churn_peers_max)};
  if (options.sweeps < 1) return {Code::invalid, "sweeps is 0: at least 1"};
  if (settings.elements < 1) return {Code::invalid, "elements is 0: at least 1"};
  if (!(options.absence >= 0 && options.absence < 1)) return {Code::invalid, "absence is " + std::to_string(options.absence) + ": 0 to below 1"};
  if (options.away < millisecond || options.limit < second) return {Code::invalid, "away is at least 1 ms, limit at least 1 s"};
  if (settings.commit != CommitRule::agreed || !(settings.contribute == StepCodec()) || !(settings.result == StepCodec())) return {Code::invalid, "a study replays rounds that agree on plain values, and no others"};
  return settings.times.check();
}

Result<ElasticStudyResult> study_elastic(const ElasticStudyOptions& options, const std::function<void(uint64_t)>& progress) {
  if (auto checked = check(options); !checked.ok()) return checked;
  return Study(options, progress).run();
}

}  // namespace unisono::sim

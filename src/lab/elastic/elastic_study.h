// A whole elastic run in virtual time, watched: many peers averaging step again and again while some come and go, or are absent
// for a while; every round is replayed and checked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lab/elastic/churn_trace.h"
#include "sim/elastic/elastic_cluster.h"
#include "sim/elastic/elastic_replay.h"
#include "unisono/status.h"

namespace unisono::sim {

struct ElasticStudyOptions {
  ElasticClusterOptions
      cluster;          // settings.elements, max_group, times, …; compute is the time between two averaging steps of a peer
  uint32_t peers = 64;  // that begin, each a moment after the one before; with a trace, those that it names
  uint64_t steps = 20;  // of the run
  Nanos until = 0;      // it goes on until then, however many averaging steps it has made: to see all of a trace
  double absence = 0;   // chance that a peer stands still in a round: at any moment of it, for `away`
  Nanos away = 3 * second;
  ChurnTrace trace;             // which peers come and go, and when; empty: all join at the beginning and stay
  Nanos limit = 3600 * second;  // of virtual time: a run that has not made its averaging steps until then has failed
};
// invalid: names what makes no sense.
Status check(const ElasticStudyOptions& options);

// The results of the averaging steps with one number, over the peers that ended them.
struct StepTally {
  uint64_t peers = 0, exact = 0;
  Nanos first_ended = 0, ended = 0;  // by the first and by the last of them
  double seconds_max = 0, seconds_mean = 0;
  double spread = 0;  // root of the variance in the first groups, mean over peers
};

struct ElasticStudyResult {
  bool completed = false;  // within the limit
  std::string problem;     // of a peer that could not join; empty: all joined
  Nanos formed = 0;        // when the first peer began the first averaging step
  Nanos ended = 0;
  uint64_t joins = 0, kills = 0, leaves = 0, stops = 0;  // stops: of the trace, and absences
  uint64_t events_left = 0;                              // of the trace, that are later than the end
  uint64_t loaded = 0;                                   // joiners that got the run's state from others
  uint64_t steps = 0, exact = 0;                         // of peers
  std::vector<double> seconds;                           // of averaging steps of peers, sorted
  std::map<std::string, uint64_t> outcomes;              // of rounds of peers
  std::map<uint64_t, StepTally> by_step;
  std::vector<std::pair<Nanos, uint32_t>> present;  // how many are there, whenever it changes
  uint64_t messages = 0, bytes = 0;
  ReplayCounts replay;
};

struct ElasticStudyProgress {
  uint64_t steps = 0;    // averaging steps that at least one peer ended
  Nanos now = 0;         // virtual
  uint32_t present = 0;  // peers
};

// progress: called at every new averaging step, and now and then in between. The same options and build give the same result.
Result<ElasticStudyResult> study_elastic(const ElasticStudyOptions& options,
                                         const std::function<void(const ElasticStudyProgress&)>& progress = {});

}  // namespace unisono::sim

// Simulates a whole elastic run in virtual time. Many peers average step after step. Some of them join, leave, or are absent
// for a while. Every round is replayed and checked.
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
  // The settings of the peers and links. cluster.compute is the time that a peer computes between two averaging steps.
  ElasticClusterOptions cluster;
  uint32_t peers = 64;  // number of peers that start the run, one shortly after another; not used if there is a trace
  uint64_t steps = 20;  // number of averaging steps of the run
  Nanos until = 0;      // the run lasts at least until this time, even if it has made `steps` steps; used to run a whole trace
  double absence = 0;   // after each round of a peer, the probability that an absence follows, which lasts `away`
  Nanos away = 3 * second;
  ChurnTrace trace;             // says which peers come and go, and when; empty: all peers join at the start and stay
  Nanos limit = 3600 * second;  // in virtual time; a run that has not ended by then has failed
};
// Fails with Code::invalid, and names the setting that is out of range.
Status check(const ElasticStudyOptions& options);

// The results of one averaging step, over the peers that ended it.
struct StepTally {
  uint64_t peers = 0, exact = 0;
  Nanos first_ended = 0, ended = 0;  // when the first of these peers ended the step, and when the last one did
  double seconds_max = 0, seconds_mean = 0;
  double spread = 0;  // standard deviation of the values in the first group of a peer; mean over these peers
};

struct ElasticStudyResult {
  bool completed = false;  // the run ended before ElasticStudyOptions::limit
  std::string problem;     // says why a peer could not join; empty if all peers joined
  Nanos formed = 0;        // when the first peer began the first averaging step
  Nanos ended = 0;
  uint64_t joins = 0, kills = 0, leaves = 0, stops = 0;  // stops include those by the trace and those by absences
  uint64_t events_left = 0;                  // number of events in the trace that had not happened when the run ended
  uint64_t loaded = 0;                       // number of joiners that loaded the state of the run from other peers
  uint64_t steps = 0, exact = 0;             // numbers of averaging steps; each peer's step counts
  std::vector<double> seconds;               // durations of averaging steps, in ascending order; one for each step of each peer
  std::map<std::string, uint64_t> outcomes;  // how many rounds had each outcome; each peer's round counts
  std::map<uint64_t, StepTally> by_step;
  std::vector<std::pair<Nanos, uint32_t>> present;  // when the number of peers changed, and the new number
  uint64_t messages = 0, bytes = 0;
  ReplayCounts replay;
};

struct ElasticStudyProgress {
  uint64_t steps = 0;    // number of averaging steps that at least one peer has ended
  Nanos now = 0;         // virtual time
  uint32_t present = 0;  // number of peers that have joined and not left
};

// progress: called whenever a new averaging step has ended, and from time to time in between. The same options and the same
// build give the same result.
Result<ElasticStudyResult> study_elastic(const ElasticStudyOptions& options,
                                         const std::function<void(const ElasticStudyProgress&)>& progress = {});

}  // namespace unisono::sim

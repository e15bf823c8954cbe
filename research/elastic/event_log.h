// The event log of a training process, for a program that watches it: one JSON object per line, with `kind` and `time` (seconds
// since 1970, comparable on one host).
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "unisono/elastic.h"
#include "unisono/moshpit_sgd.h"
#include "unisono/status.h"

namespace language_model {

// The state of one training process. Times are measured from its start.
struct TrainingTally {
  uint64_t steps = 0;      // that it made
  uint64_t run_steps = 0;  // of the run as it counts them, or of the job
  uint64_t samples = 0;
  double loss = 0;      // of the last steps
  double life_s = 0;    // since the process began, without looking at held-out text
  double useful_s = 0;  // of it, computing steps
  double useful_share() const { return life_s > 0 ? useful_s / life_s : 0; }
};

class EventLog {
 public:
  // path: empty: nothing is written; "-": standard output. A file that exists is continued. unavailable: it cannot be opened.
  static unisono::Result<EventLog> open(const std::string& path);
  EventLog(EventLog&& other) noexcept : file_(other.file_) { other.file_ = nullptr; }
  EventLog& operator=(EventLog&&) = delete;
  ~EventLog();

  void joined(const unisono::ElasticState& state, const TrainingTally& tally);
  void averaging(const unisono::AveragingReport& averaging, const unisono::MoshpitSgdReport& report,
                 const TrainingTally& tally);
  void progress(const TrainingTally& tally);
  void held_out(double loss, const TrainingTally& tally);
  // why: "steps", "seconds", "told", or the error. hash: that of the parameters.
  void ended(const std::string& why, uint64_t hash, const TrainingTally& tally);

 private:
  explicit EventLog(std::FILE* file) : file_(file) {}
  void write(const std::string& line);
  std::FILE* file_;
};

}  // namespace language_model

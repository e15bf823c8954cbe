// The event log of a training process. It is made for a program that watches the process. Each line is a JSON object with the
// members `kind` and `time`. The time is in seconds since 1970, so the events of all processes of a host can be put in order.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "unisono/elastic.h"
#include "unisono/moshpit_sgd.h"
#include "unisono/status.h"

namespace language_model {

// The state of one training process.
struct TrainingTally {
  uint64_t steps = 0;      // steps that this process made
  uint64_t run_steps = 0;  // steps of the whole elastic run, or of the whole restartable job
  uint64_t samples = 0;
  double loss = 0;      // an average over the last steps
  double life_s = 0;    // seconds since the process started, minus the time that it spent on held-out losses
  double useful_s = 0;  // the part of life_s in which the process computed steps
  double useful_share() const { return life_s > 0 ? useful_s / life_s : 0; }
};

class EventLog {
 public:
  // Opens the log. If the file exists, new lines are appended to it. If `path` is "-", the log goes to standard output. If
  // `path` is empty, nothing is written. Returns unavailable if the file cannot be opened.
  static unisono::Result<EventLog> open(const std::string& path);
  EventLog(EventLog&& other) noexcept : file_(other.file_) { other.file_ = nullptr; }
  EventLog& operator=(EventLog&&) = delete;
  ~EventLog();

  void joined(const unisono::ElasticState& state, const TrainingTally& tally);
  void averaging(const unisono::AveragingReport& averaging, const unisono::MoshpitSgdReport& report,
                 const TrainingTally& tally);
  void progress(const TrainingTally& tally);
  void held_out(double loss, const TrainingTally& tally);
  // why: the reason for the end, which is "steps", "seconds", "told" (told to stop), or an error. hash: the hash of the
  // parameters.
  void ended(const std::string& why, uint64_t hash, const TrainingTally& tally);

 private:
  explicit EventLog(std::FILE* file) : file_(file) {}
  void write(const std::string& line);
  std::FILE* file_;
};

}  // namespace language_model

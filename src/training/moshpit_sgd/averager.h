// What local steps ask of a run that averages: one averaging step at a time, and a clock. ElasticAverager is the real one;
// tests have one that adds up within the process. Values that were given to begin() belong to the averaging step until end()
// returns something other than late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "unisono/elastic.h"

namespace unisono::internal {

using StateBlobs = std::vector<std::pair<std::string, std::vector<std::byte>>>;

class Averager {
 public:
  virtual ~Averager() = default;
  // blobs: what joiners are given together with the result of this averaging step.
  virtual Status begin(std::span<const std::span<float>> values, double weight, StateBlobs blobs) = 0;
  virtual bool done() const = 0;
  // Waits; the values are the mean then, where the report says that something was committed, to the same bits at all peers that
  // have it. 0: as long as it takes.
  virtual Result<AveragingReport> end(Milliseconds timeout) = 0;
  virtual void abandon() = 0;
  virtual Nanos now() const = 0;
};

// How a process begins.
struct MoshpitStart {
  bool late = false;       // the run had done averaging steps before it came
  bool loaded = false;     // and values, or blobs, were got from there
  int64_t averaging = -1;  // the donors' last one
  uint32_t peers = 1;      // that are there
  std::vector<float> values = {};
  StateBlobs blobs = {};
};

// What a report means to the training.
struct AveragingMeaning {
  bool mixed = false;    // values of somebody else came
  bool settled = false;  // all chunks were given by some round: nothing is left of what the peer had
  double spread = 0;     // before the first round
};
AveragingMeaning meaning_of(const AveragingReport& report);

}  // namespace unisono::internal

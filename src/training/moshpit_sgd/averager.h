// The run that MoshpitStepper averages with: one averaging step at a time, and a clock. ElasticAverager implements it; tests
// have one that adds up within the process. Values given to begin() belong to the averaging step until end() returns something
// other than late.
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
  // blobs: given to joiners together with the result of this averaging step.
  virtual Status begin(std::span<const std::span<float>> values, double weight, StateBlobs blobs) = 0;
  virtual bool done() const = 0;
  // Waits for the end. If the report says that something was committed, the values are then the mean, with equal bits at all
  // peers that have it. timeout 0: no limit.
  virtual Result<AveragingReport> end(Milliseconds timeout) = 0;
  virtual void abandon() = 0;
  virtual Nanos now() const = 0;
};

// The situation of a process when it joins.
struct MoshpitStart {
  bool late = false;       // the run had made averaging steps before
  bool loaded = false;     // values or blobs were loaded from donors
  int64_t averaging = -1;  // the donors' last averaging step
  uint32_t peers = 1;      // that are in the run
  std::vector<float> values = {};
  StateBlobs blobs = {};
};

// The meaning of an averaging report for the training.
struct AveragingMeaning {
  bool mixed = false;    // values of another peer came
  bool settled = false;  // some round committed every chunk: none of the peer's own old values is left
  double spread = 0;     // before the first round
};
AveragingMeaning meaning_of(const AveragingReport& report);

}  // namespace unisono::internal

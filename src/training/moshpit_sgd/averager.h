// MoshpitStepper uses this interface to average values and to read a clock. It makes one averaging step at a time.
// ElasticAverager implements the interface over an elastic run. Tests implement it within one process. The values belong to the
// averager from begin() on. They belong to the caller again when end() returns anything but the error Code::late.
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
  // `blobs` holds state for peers that join the run. They receive it together with the result of this averaging step.
  virtual Status begin(std::span<const std::span<float>> values, double weight, StateBlobs blobs) = 0;
  virtual bool done() const = 0;
  // Waits until the averaging step has ended. A timeout of 0 means no limit. If the report shows a committed round, the values
  // have been replaced by the mean. All peers that received the mean have the same bits.
  virtual Result<AveragingReport> end(Milliseconds timeout) = 0;
  virtual void abandon() = 0;
  virtual Nanos now() const = 0;
};

// The knowledge of a process about the run when it joins.
struct MoshpitStart {
  bool late = false;       // True if the run had already made averaging steps.
  bool loaded = false;     // True if this process received values or blobs from donors (peers that were in the run before it).
  int64_t averaging = -1;  // number of the last averaging step that the donors made; -1: none
  uint32_t peers = 1;      // number of peers in the run
  std::vector<float> values = {};
  StateBlobs blobs = {};
};

// What the report of an averaging step means for the training.
struct AveragingSummary {
  bool mixed = false;    // True if the mean includes values of another peer.
  bool settled = false;  // True if every chunk was averaged in at least one round, so that this peer has no old values left.
  double spread = 0;     // standard deviation of the values between the peers, before the first round
};
AveragingSummary summary_of(const AveragingReport& report);

}  // namespace unisono::internal

// One peer of Moshpit SGD: counts local steps, begins averaging steps, brings their results in. The implementation of
// unisono/moshpit_sgd.h. It has no clock and no thread; times come from its averager.
//
// An averaging step averages a copy: the base that the outer optimizer proposes (outer_optimizer.h). Its result becomes the
// reference, and the parameters become reference + (parameters - parameters at the proposal). So local steps taken meanwhile
// are kept. The weight is the number of samples since the last averaging step that had this peer's values. If no other peer
// gave anything, these samples count again the next time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "training/moshpit_sgd/averager.h"
#include "training/moshpit_sgd/outer_optimizer.h"
#include "unisono/moshpit_sgd.h"

namespace unisono::internal {

class MoshpitStepper {
 public:
  using Parameters = std::span<const std::span<float>>;
  // Name of the blob in which peers give joiners the outer optimizer and the counters.
  static constexpr const char* blob_name = "unisono.moshpit_sgd";

  // start.values, if there are any, are written into parameters.
  static Result<std::unique_ptr<MoshpitStepper>> make(std::unique_ptr<Averager> averager, const MoshpitStart& start,
                                                      Parameters parameters, const MoshpitSgdOptions& options);

  Result<MoshpitStep> after_step(Parameters parameters, uint64_t samples);
  Result<MoshpitStep> drain(Parameters parameters, Milliseconds timeout);
  Result<MoshpitStep> finish(Parameters parameters);
  void abandon();
  void give_state(MoshpitSgd::GiveState give) { give_ = std::move(give); }
  uint64_t steps() const { return steps_before_ + report_.steps; }
  MoshpitSgdReport report() const;
  std::vector<std::byte> save() const { return written(true); }
  Status load(std::span<const std::byte> bytes);

 private:
  struct Flight {
    Nanos began = 0;
    uint64_t samples = 0;  // its weight
    bool weightless = false;
  };
  // Splits the time of one call into waiting and handling.
  class Stopwatch;

  MoshpitStepper(std::unique_ptr<Averager> averager, const MoshpitStart& start, std::vector<size_t> sizes,
                 const MoshpitSgdOptions& options);
  Status begin_at(const MoshpitStart& start, Parameters parameters);
  Status check(Parameters parameters) const;
  bool is_due() const;
  Status begin_averaging(Parameters parameters, MoshpitStep& step);
  Status end_averaging(Parameters parameters, Milliseconds timeout, MoshpitStep& step);
  void bring_in(Parameters parameters, const AveragingReport& averaging, const AveragingMeaning& meaning);
  std::vector<std::byte> written(bool whole) const;
  Status read(std::span<const std::byte> bytes, bool whole);

  const MoshpitSgdOptions options_;
  std::unique_ptr<Averager> averager_;
  const std::vector<size_t> sizes_;
  OuterOptimizer outer_;
  std::vector<float> base_;    // the values to average; they belong to the averaging step while one is under way
  std::vector<float> origin_;  // the parameters when base_ was proposed
  std::vector<std::span<float>> base_views_;
  std::optional<Flight> flight_;
  MoshpitSgd::GiveState give_;
  bool late_;                                     // has weight 0 until all of its values came from other peers
  int64_t last_averaging_ = -1;                   // the last averaging step that moved the reference
  uint64_t steps_before_ = 0;                     // the donor's, when this peer joined
  uint64_t fresh_steps_ = 0, fresh_samples_ = 0;  // since the last averaging step ended
  uint64_t ungiven_samples_ = 0;
  Nanos made_at_ = 0, waited_ = 0, handled_ = 0, averaging_time_ = 0;
  MoshpitSgdReport report_;
};

}  // namespace unisono::internal

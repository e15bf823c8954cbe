// One peer of Moshpit SGD. It counts local steps, begins averaging steps, and applies their results. It implements
// unisono/moshpit_sgd.h. It has no clock and no thread: it gets the time from its averager.
//
// What an averaging step averages is called the base. The outer optimizer proposes it from a copy of the parameters
// (outer_optimizer.h). The result of the averaging becomes the reference. The local steps that this peer made since the copy
// are kept: parameters = reference + (parameters - copy).
//
// The weight of a peer is the number of its samples since the last averaging step that included its values. If no other peer
// contributed to an averaging step, these samples count again in the next one.
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
  // The name of the blob that brings the state of the outer optimizer and the counters to peers that join.
  static constexpr const char* blob_name = "unisono.moshpit_sgd";

  // If start.values is not empty, the run already has values. make() then sets `parameters` to the values that the run has now.
  static Result<std::unique_ptr<MoshpitStepper>> make(std::unique_ptr<Averager> averager, const MoshpitStart& start,
                                                      Parameters parameters, const MoshpitSgdOptions& options);

  Result<MoshpitStep> after_step(Parameters parameters, uint64_t samples);
  Result<MoshpitStep> drain(Parameters parameters, Milliseconds timeout);
  Result<MoshpitStep> finish(Parameters parameters);
  void abandon();
  void give_state(MoshpitSgd::GiveState give) { give_ = std::move(give); }
  uint64_t steps() const { return steps_before_ + report_.steps; }
  MoshpitSgdReport report() const;
  std::vector<std::byte> save() const { return encode_state(true); }
  Status load(std::span<const std::byte> bytes);

 private:
  struct Flight {
    Nanos began = 0;
    uint64_t samples = 0;  // weight of this peer in this averaging step
    bool weightless = false;
  };
  // Measures how much time of a call is spent waiting, and how much is work.
  class Stopwatch;

  MoshpitStepper(std::unique_ptr<Averager> averager, const MoshpitStart& start, std::vector<size_t> sizes,
                 const MoshpitSgdOptions& options);
  Status begin_at(const MoshpitStart& start, Parameters parameters);
  Status check(Parameters parameters) const;
  bool is_due() const;
  Status begin_averaging(Parameters parameters, MoshpitStep& step);
  Status end_averaging(Parameters parameters, Milliseconds timeout, MoshpitStep& step);
  void apply_result(Parameters parameters, const AveragingReport& averaging, const AveragingSummary& summary);
  std::vector<std::byte> encode_state(bool whole) const;
  Status read(std::span<const std::byte> bytes, bool whole);

  const MoshpitSgdOptions options_;
  std::unique_ptr<Averager> averager_;
  const std::vector<size_t> sizes_;
  OuterOptimizer outer_;
  std::vector<float> base_;    // the values to average; they belong to the averager during an averaging step
  std::vector<float> origin_;  // the copy of the parameters from which base_ was computed
  std::vector<std::span<float>> base_views_;
  std::optional<Flight> flight_;
  MoshpitSgd::GiveState give_;
  // True if this peer joined a run in progress and still has values of its own. Until values of other peers have replaced all
  // of them, its weight is 0.
  bool late_;
  int64_t last_averaging_ = -1;                   // number of the last averaging step that changed the reference; -1: none
  uint64_t steps_before_ = 0;                     // how many local steps the donor had made when this peer joined
  uint64_t fresh_steps_ = 0, fresh_samples_ = 0;  // Local steps and samples since the last averaging step ended.
  uint64_t uncounted_samples_ = 0;
  Nanos made_at_ = 0, waited_ = 0, handled_ = 0, averaging_time_ = 0;
  MoshpitSgdReport report_;
};

}  // namespace unisono::internal

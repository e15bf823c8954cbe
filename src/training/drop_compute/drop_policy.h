// A state machine that decides when steps are recorded, when a threshold is searched, and when micro-batches are dropped. All
// its input is exchanged between the ranks, so its state is equal on all ranks. Between two exchanges, the state depends only
// on the step number. Therefore all ranks begin an exchange after the same step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "training/drop_compute/compute_trace.h"
#include "training/drop_compute/drop_report.h"
#include "training/drop_compute/threshold_search.h"
#include "unisono/drop_compute.h"

namespace unisono {

class DropPolicy {
 public:
  enum class Phase : uint8_t { warming_up, calibrating, dropping, off };
  // What the ranks exchange before the next step: nothing, or the records of the window (the steps since the last exchange), or
  // these records and the recorded trace.
  enum class Gather : uint8_t { nothing, window, trace };
  // The result of a search in a trace. One rank sends its result to the others, so that all ranks use the same one.
  struct Decision {
    int64_t threshold_ns = 0;
    int64_t micro_batch_ns = 0;  // lhat, the mean time of a micro-batch
    double other_ns = 0;         // Tc, the time per step that is not spent computing
    double predicted_step = 1, predicted_total = 1, predicted_drop = 0;
    double per_second = 0;  // how many micro-batches all ranks together computed per second in the recorded steps
    uint64_t trace_hash = 0;
    uint64_t off = 0;  // 1: nothing is dropped; 0: threshold_ns is used
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  DropPolicy(const DropOptions& options, uint32_t ranks, uint32_t micro_batches);

  uint64_t next_step() const { return next_step_; }  // Returns the number of the next step. The first step has number 1.
  Phase phase() const { return phase_; }
  std::optional<int64_t> threshold_ns() const;  // Returns the threshold of the next step. If it is empty, nothing is dropped.
  const StopRule& rule() const { return rule_; }
  // records() returns whether the times of the next step are recorded. recorded_from() returns the first step of the trace.
  bool records() const { return phase_ == Phase::calibrating; }
  uint64_t recorded_from() const { return recorded_from_; }
  // The last decision was made from recorded steps. Returns the number of the step after them.
  uint64_t recorded_until() const { return decided_at_; }
  // First step of the current window.
  uint64_t window_from() const { return window_from_; }

  // Call this after each step. Returns which data the ranks must exchange before the next step.
  Gather step_ended();
  // Takes the records of all steps since window_from(), indexed by [rank][step]. Returns warnings. If `last` is true, the run
  // ends and the records change no decision.
  std::vector<std::string> window_gathered(std::span<const std::vector<StepRecord>> ranks, bool last = false);
  // `recorded` is the number of steps that all ranks have recorded. If it is too small, extends the recording and returns true.
  bool extend(size_t recorded);
  Decision decision_of(const ComputeTrace& trace, std::string& why_off) const;
  void adopt(const Decision& decision, const std::string& why_off);

  // Call this when the ranks of the group have changed. Then call update_prediction(): the prediction depends on the number of
  // ranks. The threshold does not.
  void ranks_changed(uint32_t ranks);
  void update_prediction(const ComputeTrace& trace);
  // Starts a new warm-up, in which nothing is dropped. Call this when the state came from another run.
  void restart();

  const DropReport& report() const { return report_; }
  DropReport total() const;

  // Write and read the state, for checkpoints and for ranks that join. Reports and times are not included.
  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  void enter(Phase phase);
  void begin_window();
  void begin_report();
  void end_warm_up();
  const char* never_drops_reason() const;
  bool calibrates_again() const;
  void compare_with_prediction(double per_second, std::vector<std::string>& warnings);
  void describe(DropReport& report) const;
  void switch_off(std::string why);

  DropOptions options_;
  uint32_t ranks_, micro_batches_;
  StopRule rule_;
  Phase phase_ = Phase::warming_up;
  uint64_t next_step_ = 1;
  uint64_t steps_left_ = 0;  // how many steps this phase still has; 0: the phase has no end
  uint64_t window_from_ = 1, window_left_ = 0;
  uint64_t recorded_from_ = 1;
  uint64_t decided_at_ = 0;  // the last decision was made just before this step
  uint64_t retry_at_ = 0;    // In this step, dropping is tried again. 0: it is never tried again.
  std::optional<Decision> decision_;
  std::string why_off_;
  DropReport report_;
  DropSums total_;
  uint64_t total_from_ = 0, total_to_ = 0;
};

}  // namespace unisono

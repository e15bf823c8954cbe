// Decides when to record, search and drop. A state machine fed with the data of all ranks, so it is equal on all of them.
// Between two exchanges it depends only on the step number, so all ranks exchange data after the same steps.
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
  // Data that ranks exchange before the next step: nothing, the window's records, or also the recorded trace.
  enum class Gather : uint8_t { nothing, window, trace };
  // Result of a search in a trace. Equal on all ranks: one of them sends it to the others.
  struct Decision {
    int64_t threshold_ns = 0;
    int64_t micro_batch_ns = 0;  // lhat
    double other_ns = 0;         // Tc
    double predicted_step = 1, predicted_total = 1, predicted_drop = 0;
    double per_second = 0;  // micro-batches of all ranks per second, in the recorded steps
    uint64_t trace_hash = 0;
    uint64_t off = 0;  // 1: drop nothing
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  DropPolicy(const DropOptions& options, uint32_t ranks, uint32_t micro_batches);

  uint64_t next_step() const { return next_; }  // from 1
  Phase phase() const { return phase_; }
  std::optional<int64_t> threshold_ns() const;  // of the next step; none: no drops
  const StopRule& rule() const { return rule_; }
  // Whether the next step's times are recorded. The trace begins with the step recorded_from().
  bool records() const { return phase_ == Phase::calibrating; }
  uint64_t recorded_from() const { return recorded_from_; }
  // First step after the trace of the last decision.
  uint64_t recorded_until() const { return decided_at_; }
  // A window begins with this step.
  uint64_t window_from() const { return window_from_; }

  // Call after each step. Returns the data to exchange now.
  Gather step_ended();
  // All steps since window_from(), [rank][step]. Returns warnings. last: the final window of a run, without consequences.
  std::vector<std::string> window_gathered(std::span<const std::vector<StepRecord>> ranks, bool last = false);
  // If all ranks together recorded too few steps, extends the recording by the missing number. True if so.
  bool extend(size_t recorded);
  Decision decision_of(const ComputeTrace& trace, std::string& why_off) const;
  void adopt(const Decision& decision, const std::string& why_off);

  // The group's ranks have changed. The threshold stays, as it does not depend on the number of ranks; foresee() updates the
  // prediction.
  void regrouped(uint32_t ranks);
  void foresee(const ComputeTrace& trace);
  // Nothing is dropped during a new warm-up, because the state came from another run.
  void begin_again();

  const DropReport& report() const { return report_; }
  DropReport total() const;

  // For new ranks and for checkpoints; without reports and times.
  void write(ByteWriter& writer) const;
  bool read(ByteReader& reader);

 private:
  void enter(Phase phase);
  void begin_window();
  void begin_report();
  void warmed_up();
  const char* hopeless() const;
  bool calibrates_again() const;
  void judge(double per_second, std::vector<std::string>& warnings);
  void describe(DropReport& report) const;
  void switch_off(std::string why);

  DropOptions options_;
  uint32_t ranks_, micro_batches_;
  StopRule rule_;
  Phase phase_ = Phase::warming_up;
  uint64_t next_ = 1;
  uint64_t left_ = 0;  // steps left in this phase; 0: it has no end
  uint64_t window_from_ = 1, window_left_ = 0;
  uint64_t recorded_from_ = 1;
  uint64_t decided_at_ = 0;  // the last trace was searched before this step
  uint64_t retry_at_ = 0;    // step of the next attempt; 0: none
  std::optional<Decision> decision_;
  std::string why_off_;
  DropReport report_;
  DropSums total_;
  uint64_t total_from_ = 0, total_to_ = 0;
};

}  // namespace unisono

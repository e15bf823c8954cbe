// When to record, when to search, when to drop and when not to: a state machine that is told what all ranks did, and so is the
// same on all of them. Between two gatherings it depends on the step's number alone, so that ranks ask for them at the same
// time.
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
  // What ranks tell each other before the next step: nothing, what they did in the window, or what they recorded too.
  enum class Gather : uint8_t { nothing, window, trace };
  // What was found in a trace. The same on all ranks: one of them tells it to the others.
  struct Decision {
    int64_t threshold_ns = 0;
    int64_t micro_batch_ns = 0;  // lhat
    double other_ns = 0;         // Tc
    double predicted_step = 1, predicted_total = 1, predicted_drop = 0;
    double per_second = 0;  // micro-batches of all ranks in the recorded steps
    uint64_t trace_hash = 0;
    uint64_t off = 0;  // 1: nothing is to be dropped
    friend bool operator==(const Decision&, const Decision&) = default;
  };

  DropPolicy(const DropOptions& options, uint32_t ranks, uint32_t micro_batches);

  uint64_t next_step() const { return next_; }  // from 1
  Phase phase() const { return phase_; }
  std::optional<int64_t> threshold_ns() const;  // of the next step; none: nothing is dropped
  const StopRule& rule() const { return rule_; }
  // The next step's times are kept for the trace, which is of the steps from this one on.
  bool records() const { return phase_ == Phase::calibrating; }
  uint64_t recorded_from() const { return recorded_from_; }
  // And up to this one, without it, when the last decision was taken.
  uint64_t recorded_until() const { return decided_at_; }
  // What a window is gathered of: the steps from this one on.
  uint64_t window_from() const { return window_from_; }

  // A step is over.
  Gather step_ended();
  // All steps since window_from(), [rank][step]. Returns what is to be warned of. last: of a run; nothing follows from it.
  std::vector<std::string> window_gathered(std::span<const std::vector<StepRecord>> ranks, bool last = false);
  // Fewer steps than are needed were recorded by all ranks: so many more will be. True if so.
  bool extend(size_t recorded);
  Decision decision_of(const ComputeTrace& trace, std::string& why_off) const;
  void adopt(const Decision& decision, const std::string& why_off);

  // The group has other ranks now than when this was written. The threshold stays, as it does not depend on the number of
  // ranks; what it promises does: foresee().
  void regrouped(uint32_t ranks);
  void foresee(const ComputeTrace& trace);
  // Nothing is dropped while it warms up again: the state is another run's.
  void begin_again();

  const DropReport& report() const { return report_; }
  DropReport total() const;

  // For others to go on from, and for checkpoints; without reports and times.
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
  uint64_t left_ = 0;  // steps of this phase; 0: it has no end
  uint64_t window_from_ = 1, window_left_ = 0;
  uint64_t recorded_from_ = 1;
  uint64_t decided_at_ = 0;  // the step before which the last trace was searched
  uint64_t retry_at_ = 0;    // 0: never
  std::optional<Decision> decision_;
  std::string why_off_;
  DropReport report_;
  DropSums total_;
  uint64_t total_from_ = 0, total_to_ = 0;
};

}  // namespace unisono

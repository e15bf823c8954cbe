// A trace: the recorded times of steps in which nothing was dropped. The search chooses a threshold from a trace.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono {

struct ComputeTrace {
  uint32_t workers = 0, micro_batches = 0;  // N workers, and M micro-batches of each worker in a step
  std::vector<int64_t>
      // Indexed by [step][worker][micro-batch]: the time in ns from the start of the step to the end of the micro-batch. The
      // times of one worker in one step never decrease.
      ends{};
  std::vector<int64_t> walls{};  // Indexed by [step][worker]: how long the whole step took, in ns.

  size_t steps() const { return workers == 0 ? 0 : walls.size() / workers; }
  std::span<const int64_t> ends_of(size_t step, size_t worker) const {
    return std::span(ends).subspan((step * workers + worker) * micro_batches, micro_batches);
  }
  // Returns T_i: the time in ns at which the slowest worker of the step had computed all its micro-batches.
  int64_t compute_ns(size_t step) const;
  // Returns Tc, the mean time per step that is not spent computing, in ns: max(0, mean of walls - mean of T_i).
  double other_ns() const;
  // Returns lhat, the mean time of a micro-batch, rounded to the nearest ns.
  int64_t micro_batch_ns() const;
  // Returns a hash of all fields. Ranks compare their hashes to see whether their traces are equal.
  uint64_t hash() const;
  // Returns invalid in three cases:
  // - the trace has no steps, or too many times;
  // - the sizes of the fields do not match;
  // - a time is negative, is less than the time before it, or exceeds 36 years.
  // The search functions require a trace for which check() returns ok.
  Status check() const;

  // Returns the first line of a file, without a line break: step,rank,wall_ns,end_1_ns,…,end_M_ns.
  static std::string head(uint32_t micro_batches);
  // Reads a file. It begins with a head line. The lines step,rank,wall_ns,end_1_ns,…,end_M_ns follow, in any order and with any
  // step and rank numbers. A step is skipped if the line of a rank is missing. Empty lines and repeated head lines are skipped,
  // so the files of several ranks may be concatenated.
  //
  // Returns invalid, with the number of the line, if a line is malformed, is a duplicate, or has too few end times
  // (truncated_trace). Returns invalid (too_few_steps) if there is no step for which all ranks have a line.
  static Result<ComputeTrace> parse(std::string_view text);
};

}  // namespace unisono

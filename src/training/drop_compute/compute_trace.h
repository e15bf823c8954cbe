// Recorded times of steps without drops; the threshold search uses them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "unisono/status.h"

namespace unisono {

struct ComputeTrace {
  uint32_t workers = 0, micro_batches = 0;  // N, M
  std::vector<int64_t>
      ends{};  // [step][worker][micro-batch]: ns from the step's start to the micro-batch's end; never decreasing
  std::vector<int64_t> walls{};  // [step][worker]: ns of the whole step

  size_t steps() const { return workers == 0 ? 0 : walls.size() / workers; }
  std::span<const int64_t> ends_of(size_t step, size_t worker) const {
    return std::span(ends).subspan((step * workers + worker) * micro_batches, micro_batches);
  }
  // T_i: when the step's last worker had computed everything, ns.
  int64_t compute_ns(size_t step) const;
  // Tc: mean time of a step outside computing: max(0, mean of walls - mean of T_i), ns.
  double other_ns() const;
  // lhat: mean time of a micro-batch, to the nearest ns.
  int64_t micro_batch_ns() const;
  // Hash of everything, in order; ranks compare it.
  uint64_t hash() const;
  // invalid (truncated_trace, too_few_steps), with the position: sizes do not match, no step, or times that are negative,
  // decrease or exceed 36 years. Searches require a valid trace.
  Status check() const;

  // First line of a file, without its line end: step,rank,wall_ns,end_1_ns,…,end_M_ns.
  static std::string head(uint32_t micro_batches);
  // Reads a file: a head line, then lines step,rank,wall_ns,end_1_ns,…,end_M_ns in any order, with any step and rank numbers.
  // Steps that lack a rank's line are skipped. Empty lines and repeated heads are skipped, so files of several ranks may be
  // concatenated. invalid: names the line that is wrong (truncated_trace: too few ends) or duplicate. too_few_steps: no
  // complete step.
  static Result<ComputeTrace> parse(std::string_view text);
};

}  // namespace unisono

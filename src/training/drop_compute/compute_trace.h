// Recorded times of steps of which nothing was dropped: what a threshold is searched in.
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
  std::vector<int64_t> ends{};   // [step][worker][micro-batch]: from the step's begin to that one's end, ns; they do not fall
  std::vector<int64_t> walls{};  // [step][worker]: of the whole step, ns

  size_t steps() const { return workers == 0 ? 0 : walls.size() / workers; }
  std::span<const int64_t> ends_of(size_t step, size_t worker) const {
    return std::span(ends).subspan((step * workers + worker) * micro_batches, micro_batches);
  }
  // T_i: when the step's last worker was through, ns.
  int64_t compute_ns(size_t step) const;
  // Tc: what a step takes beside that, on average: max(0, mean of walls - mean of T_i), ns.
  double other_ns() const;
  // lhat: what a micro-batch takes, on average, to the nearest ns.
  int64_t micro_batch_ns() const;
  // Of all of it, in this order: ranks compare it.
  uint64_t hash() const;
  // invalid (truncated_trace, too_few_steps): sizes that do not fit each other, no step, times that are negative, fall or are
  // longer than 36 years; names the place. All that searches in a trace needs one that is right.
  Status check() const;

  // The first line of a file, without its end: step,rank,wall_ns,end_1_ns,…,end_M_ns.
  static std::string head(uint32_t micro_batches);
  // The lines of a file: step,rank,wall_ns,end_1_ns,…,end_M_ns below a head line of these words; in any order, steps and ranks
  // of any numbers. Steps of which a rank's line is missing are left out. Empty lines and the head again are passed over, so
  // that ranks' files may follow each other. invalid: the line that is wrong (truncated_trace: with fewer ends), or that is
  // there twice; too_few_steps: no step is there whole.
  static Result<ComputeTrace> parse(std::string_view text);
};

}  // namespace unisono
